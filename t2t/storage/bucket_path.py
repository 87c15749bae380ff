"""The path of a file or folder in a bucket, apart from paths.py since its import takes time."""

from etils.epath.gpath import PosixGPath


class BucketPath(PosixGPath):  # type: ignore[misc]  # etils has no types
    """A path that is always absolute; a bucket has no links."""

    def absolute(self) -> "BucketPath":
        """Returns the path itself."""
        return self

    def resolve(self, strict: bool = False) -> "BucketPath":
        """Returns the path itself; etils would put the current folder before it."""
        del strict
        return self
