"""``muster serve``: the workbench's REST interface over any Muster platform."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from muster.commands.options import WholeNumber
from muster.errors import JobError
from muster.runtime.extras import extra

PORT = 8765


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen. Beyond loopback it takes TLS.")
@click.option("--port", type=WholeNumber(0, 65535), metavar="PORT", help=f"0 for any that is free.  [default: {PORT}]")
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Certificate, as PEM.")
@click.option(
    "--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its private key, as PEM."
)
@click.option(
    "--keys",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="API keys, one a line; made with one in it if it is not there.  [default: a new key, void with the service]",
)
@click.option("--platform", default="local", show_default=True, help="Where workers run.")
@click.option(
    "--project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    help="Folder that workers run in, and scripts lie in.  [default: this one]",
)
@click.option("--max-workers", type=WholeNumber(min=1), default=64, show_default=True, help="Workers at once, in all.")
@click.option("--max-session-workers", type=WholeNumber(min=1), default=32, show_default=True, help="Of one session.")
@click.option("--print-env", is_flag=True, help="Print what points a client at the service that runs here.")
def serve(
    host: str, port: int | None, tls_cert: Path | None, tls_key: Path | None, keys: Path | None, platform: str,
    project: Path, max_workers: int, max_session_workers: int, print_env: bool,
) -> None:  # fmt: skip
    """Serve the workbench's REST interface on this machine.

    Clients written for the workbench run unchanged. Whoever has an API key may launch workers, which run Python as the
    user who serves. Keys are in a file that only this user can read; each sees its own workers only. Workers end when
    they are told to, or with the service.

    \b
    Examples:
      muster serve --project ~/my-project
      eval "$(muster serve --print-env)"       in another terminal: CDSW_API_KEY, CDSW_PROJECT_URL and so on
      muster serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem

    Its description is at /openapi.json. Ctrl-C and SIGTERM end it, and all workers before it.
    """
    from muster.serve.record import client_environment

    if print_env:
        click.echo(client_environment(port))
        return
    if (tls_cert is None) != (tls_key is None):
        raise JobError("TLS needs both a certificate and its key.", advice="--tls-cert FILE --tls-key FILE")
    if sys.stderr.isatty():  # for people; programs read the lines that come once it serves
        click.echo("Starting; this takes some seconds.", err=True)
    with extra("serve"):
        import IPython  # noqa: F401  (for the workers)

        from muster.serve.engines import ServeLimits
        from muster.serve.server import ServeOptions, Tls
        from muster.serve.server import serve as serve_until_told
    serve_until_told(
        ServeOptions(
            host=host,
            port=PORT if port is None else port,
            tls=Tls(tls_cert.resolve(), tls_key.resolve()) if tls_cert and tls_key else None,
            keys=keys.resolve() if keys else None,
            platform=platform,
            project=project.resolve(),
            limits=ServeLimits(max_workers, max_session_workers),
        )
    )
