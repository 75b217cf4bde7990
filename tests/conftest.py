"""For all tests: no runtime talks to its maker; and CI, whose machine has everything, leaves nothing out for a lack."""

import os

import pytest

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
LACKS = ("apt-get", "make pi", "make suites", "--prepare", "needs root")
"""Words of the reasons for which a test is left out on a machine that lacks something."""


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or reporter is None:
        return
    reasons = [str(report.longrepr) for report in reporter.stats.get("skipped", [])]
    lacking = [reason for reason in reasons if any(word in reason for word in LACKS)]
    if lacking:
        reporter.write_line("CI left tests out, so it fails:\n" + "\n".join(lacking), red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
