"""The service as a process: where it listens, until when, and what it leaves, which is nothing but logs."""

from __future__ import annotations

import ipaddress
import signal
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click
import requests
import uvicorn

from muster.errors import JobError
from muster.platforms import get_platform
from muster.serve.app import ENGINES_PATH, PROJECT_PATH, make_app
from muster.serve.engines import Engines, Limits
from muster.serve.keys import make_key_file, read_keys
from muster.serve.record import Record, clean_up

APP_PORT = 8100  # where workers may serve pages, each on its own address
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 5  # seconds that requests get to finish in


@dataclass(frozen=True)
class Tls:
    """A certificate and its private key: PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Options:
    """What ``muster serve`` was asked for."""

    host: str
    port: int
    tls: Tls | None
    keys: Path
    platform: str
    project: Path
    limits: Limits


def serve(options: Options) -> None:
    """Serve until a signal comes; then end all workers.

    Raises:
        JobError: it cannot be done as asked.
        PlatformError: this system cannot host the platform.
    """
    platform = get_platform(options.platform)
    platform.check()
    if make_key_file(options.keys):
        click.echo(f"Made an API key in {options.keys}.")
    keys = read_keys(options.keys)
    clean_up()
    with listen(options) as listener:
        record = Record()
        environment = site_environment(options, listener, record.folder)
        engines_url = environment["CDSW_PROJECT_URL"].removesuffix(PROJECT_PATH) + ENGINES_PATH
        record.announce(
            platform=options.platform,
            address=platform.usable_address(),
            port=listener.getsockname()[1],
            keys=str(options.keys),
            engines=engines_url,
            environment=environment,
        )
        engines = Engines(platform, options.project, record, keys, environment, engines_url, options.limits)
        with ThreadPoolExecutor(1, "muster-engines") as executor:
            try:
                run(options, engines, executor, listener)
            finally:
                executor.submit(engines.close).result()
        record.close()


def run(options: Options, engines: Engines, executor: ThreadPoolExecutor, listener: socket.socket) -> None:
    """Answer requests until a signal comes."""
    config = uvicorn.Config(
        make_app(engines, executor),
        ssl_certfile=options.tls.certificate if options.tls else None,
        ssl_keyfile=options.tls.key if options.tls else None,
        lifespan="off",
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise JobError(f"The certificate cannot be used: {error}.") from error
    server = uvicorn.Server(config)
    for signum in SIGNALS:  # the server raises those that it has got once more at its end, and they are to do no harm
        signal.signal(signum, server.handle_exit)
    click.echo(f"Serving {options.project} on {url_of(options, listener)}, platform {options.platform}.")
    click.echo(f"API keys: {options.keys}")
    click.echo('For clients here: eval "$(muster serve --print-env)". Ctrl-C ends it and all workers.')
    server.run(sockets=[listener])


def listen(options: Options) -> socket.socket:
    """A socket on the host and port of the options.

    Raises:
        JobError: others could listen in, or the address cannot be had.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        if not options.tls and not ipaddress.ip_address(address[0]).is_loopback:
            raise JobError(
                f"{options.host} is reached from other machines: without TLS they could read along.",
                advice="--tls-cert FILE --tls-key FILE, or --host 127.0.0.1",
            )
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise JobError(
            f"Port {options.port} of {options.host} cannot be listened on: {error.strerror}.",
            advice="--port 0 takes any that is free",
        ) from error


def url_of(options: Options, listener: socket.socket) -> str:
    """Where clients find the service."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.getfqdn()
    elif options.tls:
        host = options.host  # as the certificate has it
    return f"{'https' if options.tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def site_environment(options: Options, listener: socket.socket, folder: Path) -> dict[str, str]:
    """What clients and workers both find in their environment."""
    url = url_of(options, listener)
    environment = {
        "CDSW_APP_PORT": str(APP_PORT),
        "CDSW_DOMAIN": url.partition("://")[2],
        "CDSW_PROJECT": options.project.name,
        "CDSW_PROJECT_URL": url + PROJECT_PATH,
    }
    if options.tls:
        bundle = folder / "trusted.pem"
        bundle.write_bytes(Path(requests.certs.where()).read_bytes() + options.tls.certificate.read_bytes())
        environment["REQUESTS_CA_BUNDLE"] = str(bundle)
    return environment
