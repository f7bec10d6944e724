"""An actor joins a run: it takes the learner's welcome and answers; and the actor of the learner's own process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, cast

from accel.acting.actor import Actor
from accel.compressors.cpu import cpu_features
from accel.config.actor import ActorConfig
from accel.errors import AccelError, message_of
from accel.json_object import Json
from accel.supervision.activity import STEPPING, WAITING
from accel.system.signals import Interrupted
from accel.transport.base import ActorTransport, Stopped

if TYPE_CHECKING:
    from accel.acting.device import DeviceActor
    from accel.experience.stores.base import Experience

SteppedActor: TypeAlias = "Actor | DeviceActor"
"""What acts for a learner: ``step`` pushes an unroll, or returns it where there is no transport between the two."""
MakeActor: TypeAlias = Callable[[ActorConfig, ActorTransport], SteppedActor]


class InlineActor:
    """The one actor of a run in a single process, which takes turns with the learner.

    Attributes:
        actor: it, from ``join`` on.
        is_over: what ``turn`` was given, while it lasts: whether nobody waits for its end; otherwise None.
    """

    def __init__(self, transport: ActorTransport, make: MakeActor = Actor) -> None:
        self._transport, self._make = transport, make
        self.actor: SteppedActor | None = None
        self.is_over: Callable[[], object] | None = None

    def join(self) -> None:
        """Take the welcome, make the environments, answer. Raises EnvError, MissingExtraError."""
        self.actor = join(self._transport, 0.0, make=self._make)
        self._transport.activity.enter(WAITING)

    def turn(self, is_over: Callable[[], object]) -> Experience | None:
        """``step`` for a caller that does other things in between, in which nobody's environment hangs.

        Another thread that finds this over may interrupt it (``Interrupted``). Raises Stopped.
        """
        self.is_over = is_over
        self._transport.activity.enter(STEPPING)
        try:
            return cast(SteppedActor, self.actor).step(is_over)
        except Interrupted:
            raise Stopped("the run is over") from None
        finally:
            self._transport.activity.enter(WAITING)
            self.is_over = None


def join(
    transport: ActorTransport, timeout_s: float, pin: Callable[[], object] = lambda: None, make: MakeActor = Actor
) -> SteppedActor:
    """Take the learner's welcome, make an actor with its environments and answer.

    Args:
        timeout_s: how long to wait for the configuration.
        pin: binds this process to its core; called if the configuration wants that, before environments start threads.
    Raises:
        AccelError: the environments cannot be made; the learner was told. TransportError: no welcome in time.
    """
    config = ActorConfig.from_json(transport.welcome(timeout_s))
    if config.pin_cores and not config.env_workers:  # Workers would share the actor's core.
        pin()
    try:
        actor = make(config, transport)
    except SystemExit:
        raise
    except BaseException as error:
        told: Json = {"error": f"{message_of(error)}: mend the environment", "kind": "EnvError"}
        if isinstance(error, AccelError):
            told = {"error": str(error), "kind": type(error).__name__}
        transport.hello(told)
        raise
    features = sorted(cpu_features())
    transport.hello({"spec": actor.spec.to_json(), "cpu_features": features, "host": os.uname().nodename})
    return actor
