"""The build backend: setuptools' for a checkout that is installed in place, and one clear line for every other way.

A copy in site-packages would lack what stands beside the packages (zoo/, requirements.txt, results/) and put artifacts/
among the system's files. So wheels are refused, before anything is downloaded or written; ``make setup`` is the way.
"""

from typing import NoReturn

from setuptools.build_meta import build_editable, get_requires_for_build_editable, prepare_metadata_for_build_editable

__all__ = ["build_editable", "get_requires_for_build_editable", "prepare_metadata_for_build_editable"]


def get_requires_for_build_wheel(*_: object) -> NoReturn:
    """Refuse: the first that an installer asks for, before it fetches dependencies."""
    raise SystemExit("This project is used from its checkout, not from site-packages. Type: make setup")


prepare_metadata_for_build_wheel = build_wheel = build_sdist = get_requires_for_build_wheel
