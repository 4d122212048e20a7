"""Platforms by name, each imported when it is first asked for."""

from __future__ import annotations

import difflib
import os
from importlib import import_module
from typing import Any

from muster.errors import JobError
from muster.options.fields import options_of
from muster.platforms.base import Platform
from muster.platforms.workbench.detection import is_session
from muster.text.arguments import Argument, ArgumentText, listed

PLATFORMS = {
    "local": "muster.platforms.local:LocalPlatform",
    "hosts": "muster.platforms.hosts.platform:HostsPlatform",
    "workbench": "muster.platforms.workbench.platform:WorkbenchPlatform",
    "containers": "muster.platforms.containers.platform:ContainersPlatform",
    "kubernetes": "muster.platforms.kubernetes.platform:KubernetesPlatform",
    "slurm": "muster.platforms.slurm.platform:SlurmPlatform",
}

OTHER_NAMES = {
    "docker": "containers",
    "podman": "containers",
    "container": "containers",
    "k8s": "kubernetes",
    "kube": "kubernetes",
    "kubectl": "kubernetes",
    "pods": "kubernetes",
    "ssh": "hosts",
    "machines": "hosts",
    "nodes": "hosts",
    "sbatch": "slurm",
    "srun": "slurm",
    "cdsw": "workbench",
    "cml": "workbench",
    "cloudera": "workbench",
    "localhost": "local",
}  # other names that users try

OWN = "one of your own is given in Python, as an object: platform=YourPlatform()"


def get_platform(platform: str | Platform | None, **options: Any) -> Platform:
    """Return the platform of that name, made with ``options``, or the given object itself.

    None stands for the platform that ``MUSTER_PLATFORM`` names; where that is not set, for ``workbench`` in a session
    of the workbench, and for ``local`` elsewhere.

    Raises:
        JobError: there is no platform of that name, or it has no such option.
        PlatformUnsupported: it cannot be used from here.
    """
    if isinstance(platform, Platform):
        if options:
            raise JobError(
                f"A platform that is made already takes no options: {', '.join(options)}.",
                advice=f"give them to {type(platform).__name__}(...)",
            )
        return platform
    name = platform_name(platform)
    known = option_names(name)
    unknown = [option for option in options if option not in known]
    if unknown:
        having = [other for other in PLATFORMS if unknown[0] in option_names(other)]
        raise JobError(
            ArgumentText(f"Platform {name!r} has no such option: ", listed(unknown), "."),
            advice=ArgumentText(
                *[part for other in having for part in (" or ", Argument("platform", other))][1:],
                ", whose option ",
                Argument(unknown[0]),
                " is",
            )
            if having
            else ArgumentText("its options are ", listed(known) or "none"),
        )
    made: Platform = platform_class(name)(**options)
    return made


def platform_name(platform: str | None) -> str:
    """Return the name of the platform to use.

    Raises:
        JobError: there is no platform of that name.
    """
    if platform is not None and not isinstance(platform, str):
        raise JobError(
            f"platform is of type {type(platform).__name__}; it must be a name or a platform.",
            advice=ArgumentText(Argument("platform", ""), f" one of {', '.join(sorted(PLATFORMS))}"),
        )
    name = platform or os.environ.get("MUSTER_PLATFORM") or ("workbench" if is_session(os.environ) else "local")
    if name not in PLATFORMS:
        meant = OTHER_NAMES.get(name.lower())
        near = [meant] if meant else difflib.get_close_matches(name.lower(), PLATFORMS, n=1)
        known = f" one of {', '.join(sorted(PLATFORMS))}; {OWN}"
        advice = ArgumentText(Argument("platform", near[0])) if near else ArgumentText(Argument("platform", ""), known)
        raise JobError(f"There is no platform {name!r}.", advice=advice)
    return name


def platform_class(platform: str) -> Any:
    """Return the class of the platform of that name, which must be one of ``PLATFORMS``."""
    module, _, attribute = PLATFORMS[platform].partition(":")
    return getattr(import_module(module), attribute)


def option_names(platform: str) -> list[str]:
    """Return the names of a platform's options; none where there is no platform of that name."""
    return [option.name for option in options_of(platform_class(platform))] if platform in PLATFORMS else []
