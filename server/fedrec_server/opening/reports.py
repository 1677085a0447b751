"""What members found in a published ciphertext sum that each of them decrypts."""

from __future__ import annotations

from fedrec.wire.messages import Report
from fedrec_server.membership.admission import Admission
from fedrec_server.rounds.events import ReportReceived
from fedrec_server.run.live_run import LiveRun

__all__ = ["take_report"]


async def take_report(run: LiveRun, admission: Admission, report: Report) -> None:
    """Keep a client's word on a published ciphertext sum.

    Raises:
        FedrecError: it is not the client's, or not about a sum that reports are awaited on.
    """
    run.presence.heard(report.client_id)
    admission.check_report(report, measured=True)
    await run.work.uninterrupted(_keep(run, report))


async def _keep(run: LiveRun, report: Report) -> None:
    async with run.lock:
        await run.apply(ReportReceived(now=run.clock.now(), report=report))
    run.failpoint("report.ack")
    run.advance_soon()
