"""``muster trust``: logins without a prompt to a list of hosts."""

from __future__ import annotations

import getpass
import sys

import click

from muster.errors import TrustError
from muster.security.ssh import SSH_PORT
from muster.text.cleaning import clean


@click.command()
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...")
@click.option("-l", "--user", help="Whom to log in as.  [default: your name here]")
@click.option(
    "-p", "--port", type=click.IntRange(1, 65535), default=SSH_PORT, show_default=True, help="Where sshd listens."
)
@click.option(
    "--accept", "accepted", multiple=True, metavar="FINGERPRINT",
    help="The fingerprint of a host's key, SHA256:..., that you know to be right; repeatable.",
)  # fmt: skip
@click.option(
    "--check",
    is_flag=True,
    help="Only try whether each host can be logged in to; by ssh's configuration, but for a --port or --user given.",
)
@click.pass_context
def trust(
    ctx: click.Context, hosts: tuple[str, ...], user: str | None, port: int, accepted: tuple[str, ...], check: bool
) -> None:
    """Have `ssh HOST` log in without a prompt, as mpirun needs it.

    Makes a key pair if you have none, installs its public key on each host, for which it may ask for your password
    there, and makes sure that it is let in. Writes how to reach a host (port, user, key) into ~/.ssh/muster.d/HOST, and
    one line into ~/.ssh/config that includes these files. Asks before it believes the key of a host that is not known
    yet; without a terminal, --accept says which are right. No other file is changed but known_hosts.

    \b
    Examples:
      muster trust gpu1 gpu2 --port 22
      muster trust 10.0.0.5 10.0.0.6
      muster trust 10.0.0.5 --accept SHA256:6lRhTvMQ...
      muster trust --check 10.0.0.5 10.0.0.6

    The exit status is 1 if any host cannot be logged in to.
    """
    from muster.security.trust import check_login
    from muster.security.trust import trust as trust_host

    is_terminal = sys.stdin.isatty()

    def accept(host: str, fingerprint: str) -> bool:
        if fingerprint in accepted or not is_terminal:
            return fingerprint in accepted
        click.echo(f"{host} proves itself by a key with the fingerprint\n  {fingerprint}", err=True)
        click.echo("Compare it with what `ssh-keygen -lf` says of the key on that host.", err=True)
        return click.confirm("Is it the right one?", default=False, err=True)

    failures = 0
    for host in hosts:
        try:
            if check:
                is_given = ctx.get_parameter_source("port") == click.core.ParameterSource.COMMANDLINE
                check_login(host, user=user, port=port if is_given else None)
                done = "logs in without a prompt"
            else:
                ask = (lambda who: getpass.getpass(f"Password of {who}: ")) if is_terminal else None
                installed = trust_host(host, user=user, port=port, accept=accept, ask_password=ask)
                done = f"logs in without a prompt{', its key has been installed' if installed else ''}"
            click.echo(f"✓ {host}  {done}")
        except TrustError as error:
            failures += 1
            click.echo(clean(f"✗ {host}  {error}"), err=True)
    if failures:
        sys.exit(1)
