#!/bin/bash
# Installs packages of Debian and Ubuntu, as root, and lets none of them start a service:
#   sudo bash scripts/system.sh PACKAGE ...
set -eu
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
apt() { apt-get -q -y -o DPkg::Lock::Timeout=300 "$@"; } # a new machine may still be busy with its own updates

# No service may start: sshd, for one, would open port 22. A policy that the machine has already is left as it is.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ] || grep -qs Muster "$policy"; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\n# By Muster, while it installs packages.\nexit 101\n' >"$policy"
  chmod +x "$policy"
fi
apt update
apt install --no-install-recommends "$@"
case " $* " in
*" openssh-server "*) systemctl disable ssh.socket ssh.service || true ;; # nor when the machine starts again
esac
