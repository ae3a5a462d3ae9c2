"""Reads tools/arrows: which room of src/ may include which."""


class Arrows:
    def __init__(self, path):
        self.levels = []
        self.only, self.also, self.all = {}, {}, set()
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.split("#")[0].replace(":", " : ").split()
            if not words:
                continue
            kind, rest = words[0], words[1:]
            if kind == "level" and rest:
                self.levels.append(rest)
            elif kind in ("only", "also") and rest[1:2] == [":"]:
                getattr(self, kind)[rest[0]] = set(rest[2:])
            elif kind == "all" and len(rest) == 1:
                self.all.add(rest[0])
            else:
                raise SystemExit(f"{path}:{number}: cannot read this line: {line}")

    def rooms(self):
        return {r for level in self.levels for r in level} | set(self.only) | self.all

    def may_include(self, room):
        """The rooms that @room may include, itself among them; None if no line names @room."""
        if room in self.all:
            return self.rooms()
        if room in self.only:
            return self.only[room] | {room}
        below = set()
        for level in self.levels:
            if room in level:
                return below | self.also.get(room, set()) | {room}
            below.update(level)
        return None

    def reach(self, room, there):
        """@room and, of the rooms that are there, all that it can include through others."""
        seen, todo = set(), [room]
        while todo:
            r = todo.pop()
            if r not in seen and (r in there or r == room):
                seen.add(r)
                todo.extend(self.may_include(r) or ())
        return seen
