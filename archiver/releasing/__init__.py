"""`marina release`: everything that is known of a release on one page, for whoever approves it."""

from marina.archiver.releasing.release import Release, describe_release

__all__ = ["Release", "describe_release"]
