"""`python -m holdfast.bench`, the same as `holdfast bench`."""

from holdfast.bench.command import bench

if __name__ == "__main__":
    bench(prog_name="python -m holdfast.bench")
