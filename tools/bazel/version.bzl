"""Lockstep's version, which stands only here: semver.org, where 0.MINOR may change the interface."""

VERSION = "0.2.0"
