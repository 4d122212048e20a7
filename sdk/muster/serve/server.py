"""The process of a service: it listens, serves until a signal, and leaves nothing but the logs of workers."""

from __future__ import annotations

import ipaddress
import logging
import signal
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click
import uvicorn
from fastapi import FastAPI
from requests.utils import DEFAULT_CA_BUNDLE_PATH

from muster.errors import JobError
from muster.platforms import get_platform
from muster.serve.app import make_app
from muster.serve.engines import Engines, ServeLimits
from muster.serve.keys import make_key, make_key_file, read_keys
from muster.serve.listener import RateLimit, Server
from muster.serve.record import ServiceRecord, clean_up
from muster.serve.site import ServiceSite

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 3  # seconds that requests under way may take when the service ends


@dataclass(frozen=True)
class Tls:
    """A certificate and its private key: PEM files."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """Raise JobError where the files cannot be used."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, password=lambda: "")
        except OSError as error:
            raise JobError(
                f"The certificate {self.certificate} with the key {self.key} cannot be used: {error}."
            ) from error


@dataclass(frozen=True)
class ServeOptions:
    """Options of ``muster serve``. Without a file of keys, a key is made that is valid until the service ends."""

    host: str
    port: int
    tls: Tls | None
    keys: Path | None
    platform: str
    project: Path
    limits: ServeLimits


def serve(options: ServeOptions) -> None:
    """Serve until a signal comes; then end all workers.

    Raises:
        JobError: an option cannot be used.
        PlatformError: this system cannot use the platform.
    """
    platform = get_platform(options.platform)
    platform.check()
    if options.tls:
        options.tls.check()
    if options.keys and make_key_file(options.keys):
        click.echo(f"Made an API key in {options.keys}.")
    given_keys = read_keys(options.keys) if options.keys else None
    for trouble in clean_up():
        click.echo(trouble, err=True)
    with listen(options) as listener, ThreadPoolExecutor(1, "muster-engines") as executor:
        record = ServiceRecord()
        site = ServiceSite(
            url=url_of(options, listener),
            project=options.project.name,
            address=platform.reach().advertise,
            authorities=str(trust(options.tls, record.folder)) if options.tls else None,
        )
        key_file = options.keys or record.keys
        keys = given_keys or [make_key(record.keys)]
        record.announce(options.platform, site, key_file)
        engines = Engines(platform, options.project, record, site, keys, options.limits)
        server = make_server(options, make_app(engines, executor))
        click.echo(f"Serving {options.project} on {site.url}, platform {options.platform}.")
        click.echo(f"API keys: {key_file}")
        if options.keys and not options.tls:
            click.echo(
                "These keys outlive the service, and clients send them to whoever listens on its port after it: "
                "use TLS, or leave out --keys."
            )
        click.echo('For clients here: eval "$(muster serve --print-env)". Ctrl-C ends it and all workers.')
        try:
            server.run(sockets=[listener])
        finally:
            executor.submit(engines.close).result()
            record.close()


def make_server(options: ServeOptions, app: FastAPI) -> uvicorn.Server:
    """Return a server that ends in order when a signal comes."""
    config = uvicorn.Config(
        app,
        ssl_certfile=options.tls.certificate if options.tls else None,
        ssl_keyfile=options.tls.key if options.tls else None,
        lifespan="off",
        log_level="warning",
        server_header=False,
        proxy_headers=False,  # any client could forge its address in them
        ws="none",
        timeout_graceful_shutdown=GRACE,
    )
    for handler in logging.getLogger("uvicorn").handlers:
        handler.addFilter(RateLimit())
    logging.getLogger("asyncio").addFilter(RateLimit())
    server = Server(config)
    for signum in SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:  # as under nohup
            # Needed after the server's end, too: it then removes its own handlers, and raises the signal again.
            signal.signal(signum, server.handle_exit)
    return server


def listen(options: ServeOptions) -> socket.socket:
    """Return a socket that listens on the host and port of the options.

    Raises:
        JobError: other machines could read the traffic as there is no TLS, or the address cannot be listened on.
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


def url_of(options: ServeOptions, listener: socket.socket) -> str:
    """Return the URL at which clients reach the service."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.getfqdn()
    elif options.tls:
        host = options.host  # the name in the certificate
    return f"{'https' if options.tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def trust(tls: Tls, folder: Path) -> Path:
    """Write a file with the default authorities and the service's certificate, for all requests of clients."""
    authorities = folder / "authorities.pem"
    authorities.write_bytes(Path(DEFAULT_CA_BUNDLE_PATH).read_bytes() + tls.certificate.read_bytes())
    return authorities
