"""Options that ``accel report`` and ``accel compare`` share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from accel.errors import ReportError
from monitor.errors import MonitorError

if TYPE_CHECKING:
    from monitor.report.analysis import Choices


@dataclass(frozen=True, kw_only=True)
class ReportChoices:
    """How runs are grouped and measured."""

    threshold: Annotated[
        float | None,
        tyro.conf.arg(help="return for time to threshold; default: the runs' stop-at-return, or 90 % of the gain"),
    ] = None
    group: Annotated[
        tuple[str, ...],
        tyro.conf.arg(help="options, such as compressor, by which to put runs together; default: all but the seed"),
    ] = ()
    confidence: Annotated[float, tyro.conf.arg(help="of the intervals, in (0, 1)")] = 0.95
    overwrite: Annotated[bool, tyro.conf.arg(help="replace a report that is there")] = False

    def choices(self, *, margin: float = 0.05, margin_return: float | None = None, force: bool = False) -> Choices:
        """For the analysis. Raises ReportError for a value out of range."""
        from monitor.report.analysis import Choices

        group = tuple(key.replace("-", "_") for key in self.group)
        try:
            return Choices(self.threshold, margin, group, force, self.confidence, margin_return=margin_return)
        except MonitorError as error:
            raise ReportError(str(error)) from None
