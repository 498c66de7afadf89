"""Messages of devices on their way to the handler of their kind: read, checked, answered where they cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edge.contracts import topics
from edge.contracts.envelope import Envelope, unseal
from edge.contracts.errors import ApportionError, MessageRejected
from edge.contracts.messages import Error, Hello
from edge.serving.publisher import Publisher
from edge.serving.traffic import publication_bytes

Handler = Callable[[str, Envelope], None]


class Dispatcher:
    """Hands over one message at a time; :meth:`handle` never raises for what a device sent.

    Args:
        handlers: by message kind; called with the device and the envelope. An ``error`` is told to ``say`` alone.
        say: progress lines for people.
        check: raises SignatureRejected for a message of a device that is not that device's own; None: all are.
        unanswered: errors that are no device's business: they are told to ``say`` alone.
    """

    def __init__(
        self,
        federation: str,
        handlers: Mapping[str, Handler],
        publisher: Publisher,
        say: Callable[[str], None],
        *,
        check: Callable[[str, Envelope], None] | None = None,
        unanswered: tuple[type[ApportionError], ...] = (),
    ) -> None:
        self._federation = federation
        self._handlers = handlers
        self._publisher = publisher
        self._say = say
        self._check = check
        self._unanswered = unanswered

    def handle(self, topic: str, payload: bytes) -> None:
        """Use one message; whatever is wrong with it is answered, logged and forgotten."""
        device = ""
        try:
            federation, device, kind = topics.parse_up(topic)
            if federation != self._federation:
                raise MessageRejected(f"topic names federation '{federation}', this is '{self._federation}'")
            wire = publication_bytes(topic, len(payload), qos=0 if kind == "put" else 1)
            self._publisher.account.add(device, "up", "mqtt", wire=wire)
            envelope = unseal(payload)
            if envelope.kind != kind:
                raise MessageRejected(f"topic says '{kind}', the envelope says '{envelope.kind[:40]}'")
            if self._check is not None:
                self._check(device, envelope)
            handler = self._handlers.get(kind)
            if handler is not None:
                handler(device, envelope)
            elif kind == "error":
                error = envelope.read(Error)
                self._say(f"{device} reports {error.code[:64]}: {error.message[:300]}")
            else:
                self._say(f"{device}: message kind '{kind}' is unknown here and was ignored")
        except ApportionError as error:
            is_new = True
            if device and not isinstance(error, self._unanswered):
                is_new = self._publisher.error(device, Error(error.code, str(error)[:1000]))
            if is_new:
                self._say(f"{device or topic[:80]}: {error}")


def own_hello(device: str, envelope: Envelope) -> Hello:
    """The hello in ``envelope``.

    Raises:
        MessageRejected: it is another device's.
    """
    hello = envelope.read(Hello)
    if hello.device != device or hello.profile.device != device:
        raise MessageRejected(f"hello of '{hello.device[:64]}' arrived on the topic of '{device}'; it was not used")
    return hello
