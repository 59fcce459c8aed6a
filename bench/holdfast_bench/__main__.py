"""`python -m holdfast_bench`, the same as `holdfast bench`."""

from holdfast_bench.command import bench

if __name__ == "__main__":
    bench(prog_name="python -m holdfast_bench")
