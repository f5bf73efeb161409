"""Why a server cannot be reached: gRPC says that a connection broke, a handshake of our own says
why.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from tidemill.rpc.channel import Dialer

ATTEMPT_S = 2.0
ALERT_S = 0.5
"""Seconds to wait for a refusal that comes after the handshake, as TLS 1.3 sends it."""


async def why_unreachable(address: str, dialer: Dialer) -> str | None:
    """Problem of the certificates between us, and its remedy; None if it is another one."""
    host, _, port = address.removeprefix("dns:///").rpartition(":")
    if not host or not port.isdigit():
        return None
    return await asyncio.to_thread(_attempted, host.strip("[]"), int(port), dialer)


def _attempted(host: str, port: int, dialer: Dialer) -> str | None:
    try:
        with socket.create_connection((host, port), ATTEMPT_S) as plain:
            context = _context(dialer)
            name = dialer.server_name or host
            with context.wrap_socket(plain, server_hostname=name) as secured:
                if dialer.tls is None:
                    return "it speaks TLS: name the authority of its certificate with --tls-ca"
                return _unaccepted(dialer) if _ended_at_once(secured) else None
    except ssl.SSLCertVerificationError as error:
        return _unverified(error, dialer)
    except ssl.SSLError as error:
        return None if dialer.tls is None else _refused(error.reason or "", dialer)
    except OSError:
        return None
    return None


def _ended_at_once(secured: ssl.SSLSocket) -> bool:
    """Whether the server ends the connection once it has seen our certificate, or that there is
    none.
    """
    secured.settimeout(ALERT_S)
    try:
        return secured.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def _context(dialer: Dialer) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if dialer.tls is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    if dialer.tls.authority is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(dialer.tls.authority)
    if dialer.tls.certificate is not None and dialer.tls.key is not None:
        context.load_cert_chain(dialer.tls.certificate, dialer.tls.key)
    return context


def _unverified(error: ssl.SSLCertVerificationError, dialer: Dialer) -> str:
    says = error.verify_message.lower()
    if "expired" in says:
        return "its certificate has expired: renew it, the server takes the new files by itself"
    if "mismatch" in says or "not valid for" in says:
        return "its certificate is for another name: say which with --tls-name, if that is right"
    if "not yet valid" in says:
        return "its certificate is not valid yet: compare the clocks of both machines"
    authority = dialer.tls.authority if dialer.tls is not None else None
    known = f"the one in {authority}" if authority else "those of this machine"
    return f"its certificate is of another authority than {known}: name the right one with --tls-ca"


def _refused(reason: str, dialer: Dialer) -> str | None:
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason:
        return "it does not speak TLS: leave the options of TLS out, or set its tls.certificate"
    return _unaccepted(dialer) if "ALERT" in reason else None


def _unaccepted(dialer: Dialer) -> str:
    ours = dialer.tls.certificate if dialer.tls is not None else None
    if ours is None:
        return "it asks for a certificate: name ours with --tls-cert and --tls-key"
    return (
        f"it does not accept our certificate {ours}: it has expired, or is of another authority than the "
        "server asks for"
    )
