"""``python -m lessons.speedrun``."""

from minisbert.system.console import run_command


def main() -> None:
    # not before run_command: OpenMP reads how long its threads may spin when torch is imported
    from lessons.speedrun.run import main as run

    run()


if __name__ == "__main__":
    run_command(main)
