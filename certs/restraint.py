"""How soon another authority may be made where the Secret loses them again and again.

Every new authority goes into the bundle of the webhook configuration, and stays for as long as a certificate
of it may be served. Whoever empties the Secret for ever, such as a tool that applies an empty one, would have
the bundle grow without end. So the first losses are made good at once, and those after them ever more slowly;
what is served stays meanwhile.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from certs.authority import Authority
from certs.rotation import renewal

AT_ONCE = 4
"""How many authorities may come one after the other without a pause; the first of all is one of them."""

FIRST_PAUSE = timedelta(seconds=10)
LONGEST_PAUSE = timedelta(hours=1)

FORGOTTEN_AFTER = 2 * LONGEST_PAUSE
"""How long no authority may have been lost for the count to begin anew."""


class Restraint:
    """Counts the authorities that came before the one before them was due, whoever made them.

    Times are a monotonic clock's, in seconds.
    """

    def __init__(self) -> None:
        self.count = 0
        self._last: Authority | None = None
        self._since = 0.0

    @property
    def pause(self) -> timedelta:
        """How long after the last authority another may be made."""
        if self.count < AT_ONCE:
            return timedelta()
        # Past an hour the exponent only makes numbers that are too large.
        return min(FIRST_PAUSE * (1 << min(self.count - AT_ONCE, 10)), LONGEST_PAUSE)

    def rest(self, at: float) -> timedelta:
        """How much of the pause is left."""
        return max(self.pause - timedelta(seconds=at - self._since), timedelta())

    def note(self, signer: Authority | None, *, now: datetime, at: float) -> None:
        """Take note of the signer that the Secret holds; none is no news: the next one is."""
        if signer is None or signer == self._last:
            return
        was_due = self._last is not None and now >= renewal(self._last)
        self._last = signer
        if was_due:
            return
        forgotten = at - self._since >= FORGOTTEN_AFTER.total_seconds()
        self.count = 1 if forgotten else self.count + 1
        self._since = at
