"""Functions called at once, each in a thread of its own."""

import threading
from collections.abc import Callable


def at_once(*works: Callable[[], object]) -> None:
    """Call functions in threads of their own, which begin together; raises what one of them
    raises."""
    begin = threading.Barrier(len(works))
    failed: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        begin.wait()
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
