"""docs/roofline.svg: what kernels reach beside what the card can do, both axes logarithmic."""

import html
import math

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 400, 320, 62, 34, 44  # of a panel
COLORS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e"]


def text(x, y, words, more=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{html.escape(words)}</text>'


class Panel:
    """FLOP for each byte to the right, FLOP/s upwards."""

    def __init__(self, left, name, card, points):
        self.left, self.name, self.points = left + LEFT, name, points
        self.bandwidth, self.peak = card
        intensities = [p[1] for p in points] + [self.peak / self.bandwidth]
        speeds = [p[2] for p in points] + [self.peak]
        self.x = math.floor(math.log10(min(intensities))), math.ceil(math.log10(max(intensities) * 1.5))
        self.y = math.floor(math.log10(min(speeds))), math.ceil(math.log10(max(speeds)))

    def at(self, intensity, speed):
        def place(value, ends, size):
            return (math.log10(value) - ends[0]) / (ends[1] - ends[0]) * size

        return (self.left + place(intensity, self.x, WIDTH - LEFT - 22),
                HEIGHT - BOTTOM - place(speed, self.y, HEIGHT - TOP - BOTTOM))  # fmt: skip

    def draw(self, colors):
        first, last = 10.0 ** self.x[0], 10.0 ** self.x[1]
        low, high = 10.0 ** self.y[0], 10.0 ** self.y[1]
        for k in range(self.x[0], self.x[1] + 1):
            (x, bottom), (_, top) = self.at(10.0**k, low), self.at(10.0**k, high)
            yield f'<path class="grid" d="M{x:.0f} {bottom:.0f}V{top:.0f}"/>'
            yield text(x, bottom + 14, f"{10.0**k:g}", 'text-anchor="middle"')
        for k in range(self.y[0], self.y[1] + 1):
            (x, y), (end, _) = self.at(first, 10.0**k), self.at(last, 10.0**k)
            yield f'<path class="grid" d="M{x:.0f} {y:.0f}H{end:.0f}"/>'
            yield text(x - 6, y + 4, f"{10.0 ** (k - 12):g}", 'text-anchor="end"')
        begin = max(first, low / self.bandwidth)
        roof = [(begin, begin * self.bandwidth), (self.peak / self.bandwidth, self.peak), (last, self.peak)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (self.at(*p) for p in roof))
        yield f'<path class="roof" d="M{path}"/>'
        for operator, intensity, speed, told in self.points:
            x, y = self.at(intensity, speed)
            yield (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colors[operator]}">'
                   f"<title>{html.escape(told)}</title></circle>")  # fmt: skip
        middle = self.left + (WIDTH - LEFT) / 2
        yield text(middle, HEIGHT - 8, "FLOP for each byte that must be moved", 'text-anchor="middle"')
        yield text(self.left, 20, f"{self.name}: TFLOP/s; the card {self.bandwidth / 1e12:.1f} TB/s, "
                   f"{self.peak / 1e12:.0f} TFLOP/s", 'class="head"')  # fmt: skip


def draw(path, panels):
    """panels: (name, (bytes/s, FLOP/s), [(operator, FLOP per byte, FLOP/s, what a reader is told)])."""
    operators = sorted({p[0] for _, _, points in panels for p in points})
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(operators)}
    lines = []
    for i, (name, card, points) in enumerate(panels):
        lines += Panel(i * WIDTH, name, card, points).draw(colors)
    for i, (operator, color) in enumerate(colors.items()):
        x, y = LEFT + i % 5 * 148, HEIGHT + 14 + i // 5 * 18
        lines += [f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{color}"/>', text(x + 9, y, operator)]
    height = HEIGHT + 14 + (len(colors) + 4) // 5 * 18
    style = ("text{font:11px sans-serif;fill:#444}.head{font-weight:bold}"
             ".grid{stroke:#ddd}.roof{stroke:#222;stroke-width:1.5;fill:none}")  # fmt: skip
    width = WIDTH * len(panels)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">\n'
        f'<style>{style}</style>\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(lines) + "\n</svg>\n")  # fmt: skip
