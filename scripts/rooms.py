#!/usr/bin/env python3
"""The rooms of server/, held against the code: who includes whom, who calls whom.

    scripts/rooms.py [--arrows] [build]

Includes are read from the sources: a room includes those below it, and nothing above. Calls are read from the objects of
a build, with nm: a module that uses a name which another one defines has an arrow to it. Exit status 1 where an include
points up, more than MAX_UP arrows do, or more than MAX_CIRCLE modules call each other in a circle; in client/c/, none may.
"""

import collections
import pathlib
import re
import subprocess
import sys

# From the ground up. Rooms of one line do not know each other.
FLOORS = [
    ["base"],
    ["op", "wire"],
    ["executor", "compiler", "keeper"],
    ["options"],
    ["memory"],
    ["device"],
    ["kernels"],
    ["request", "trial"],
    ["upgrade"],
    ["roof"],
]
LEVEL = {room: level for level, floor in enumerate(FLOORS) for room in floor}
MAX_UP = 3
MAX_CIRCLE = 8

TOP = pathlib.Path(__file__).resolve().parent.parent


def room(module):
    """The room of "memory/tensor"; what stands beside the rooms is the roof, but for the options, which all may read."""
    return module.split("/")[0] if "/" in module else "options" if module.startswith("option") else "roof"


def room_of(path):
    return room(str(path.relative_to(TOP / "server").with_suffix("")))


def points_up(source, target):
    return source != target and LEVEL[source] <= LEVEL[target]


def includes_up():
    for path in sorted((TOP / "server").rglob("*.[ch]")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match or match[1].startswith("../../protocol/"):
                continue
            target = TOP / "server" / match[1]
            if ".." in match[1] or not target.exists():
                yield f"{path.relative_to(TOP)}:{number}: \"{match[1]}\" is no file of server/: name it by its room"
            elif points_up(room_of(path), room_of(target)):
                yield f"{path.relative_to(TOP)}:{number}: {room_of(path)}/ may not include {match[1]}, which is above it"


def calls(objects, sources):
    """{module: {module that it calls: names}}, a module being an object below `objects`, of a file below `sources`."""
    paths = [o for o in sorted(objects.rglob("*.o")) if (sources / o.relative_to(objects)).with_suffix(".c").exists()]
    defined, wanted = {}, collections.defaultdict(set)
    for path in paths:
        module = str(path.relative_to(objects).with_suffix(""))
        out = subprocess.run(["nm", "-g", path], check=True, capture_output=True, text=True).stdout
        for line in out.splitlines():
            kind, name = line.split()[-2:]
            if kind == "U":
                wanted[module].add(name)
            else:
                defined[name] = module
    arrows = collections.defaultdict(lambda: collections.defaultdict(set))
    for module, names in wanted.items():
        for name in names & defined.keys():
            if defined[name] != module:
                arrows[module][defined[name]].add(name)
    return arrows


def circles(arrows):
    """Sets of modules that all reach each other (Tarjan's strongly connected components)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in arrows[node] if node in arrows else ():
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            circle = set()
            while node not in circle:
                circle.add(stack.pop())
            found.append(circle)

    for node in list(arrows):
        if node not in index:
            visit(node)
    return [circle for circle in found if len(circle) > 1]


def main(args):
    verbose = "--arrows" in args
    failed = False
    for line in includes_up():
        print(line)
        failed = True
    build = pathlib.Path(next((a for a in args if not a.startswith("-")), TOP / "build")).resolve()
    if not (build / "obj" / "server").is_dir():
        print("rooms: nothing is built here, calls are not checked")
        return failed
    arrows = calls(build / "obj" / "server", TOP / "server")
    up = [(a, b, names) for a, to in arrows.items() for b, names in to.items() if points_up(room(a), room(b))]
    if verbose or len(up) > MAX_UP:
        for a, b, names in sorted(up):
            print(f"up: {a} -> {b}: {' '.join(sorted(names))}")
    found = sorted(circles(arrows), key=len, reverse=True)
    for circle in found:
        if verbose or len(circle) > MAX_CIRCLE:
            print(f"circle of {len(circle)}: {' '.join(sorted(circle))}")
    between = sum(room(a) != room(b) for a, to in arrows.items() for b in to)
    widest = max(map(len, found), default=0)
    libopd = circles(calls(build / "obj" / "pic" / "client" / "c", TOP / "client" / "c"))
    for circle in libopd:
        print(f"client/c: {' '.join(sorted(circle))} call each other in a circle; one is to be told by a hook")
    print(f"rooms: {len(up)} of {between} arrows between rooms point up (at most {MAX_UP}), "
          f"the widest circle has {widest} modules (at most {MAX_CIRCLE})")
    return failed or len(up) > MAX_UP or widest > MAX_CIRCLE or bool(libopd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
