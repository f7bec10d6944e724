"""An actor's half of the handshake: it takes the welcome, makes its environments and answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from accel.errors import AccelError
from accel.transport.base import ActorTransport

if TYPE_CHECKING:
    from accel.acting.actor import Actor


class LocalActor:
    """The one actor of a run in a single process."""

    def __init__(self, transport: ActorTransport) -> None:
        self._transport = transport
        self.actor: Actor | None = None

    def join(self) -> None:
        """Take the welcome, make the environments, answer. Raises EnvError, MissingExtraError."""
        self.actor = join(self._transport, 0.0)


def join(transport: ActorTransport, timeout_s: float, pin: Callable[[], object] = lambda: None) -> Actor:
    """Take the learner's welcome, make the environments and answer.

    Args:
        transport: this actor's end.
        timeout_s: how long to wait for the configuration.
        pin: binds this process to its core; called if the configuration wants that, before environments start threads.
    Raises:
        AccelError: the environments cannot be made; the learner was told. TransportError: no welcome in time.
    """
    from accel.acting.actor import Actor
    from compressors.cpu import cpu_features

    config = transport.welcome(timeout_s)
    if config["pin_cores"]:
        pin()
    try:
        actor = Actor(config, transport)
    except AccelError as error:
        transport.hello({"error": str(error), "kind": type(error).__name__})
        raise
    except Exception as error:
        transport.hello({"error": f"{type(error).__name__}: {error}", "kind": "EnvError"})
        raise
    transport.hello(
        {
            "spec": actor.spec.to_json(),
            "layout": actor.layout.digest,
            "cpu_features": sorted(cpu_features()),
            "host": os.uname().nodename,
        }
    )
    return actor
