"""Versions of plugins, which configurations know too: see `mm2.config.versions`."""

from mm2.config.versions import InvalidVersionRange, Version, VersionRange, version_requirement

__all__ = ["InvalidVersionRange", "Version", "VersionRange", "version_requirement"]
