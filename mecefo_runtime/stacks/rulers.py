"""Offsets between the shard types that one group holds: Golomb rulers, in which no two pairs of marks are as far apart.

With them any two shard types meet in at most one group, so that the loss of a few groups takes few types far down.
"""

from __future__ import annotations

from typing import Literal

OffsetKind = Literal["golomb", "consecutive"]

# Optimal rulers, by their number of marks: https://en.wikipedia.org/wiki/Golomb_ruler, of 24 to 27 marks by
# distributed.net (https://www.distributed.net/OGR).
_RULERS = tuple(
    tuple(map(int, marks.split()))
    for marks in (
        "0",
        "0 1",
        "0 1 3",
        "0 1 4 6",
        "0 1 4 9 11",
        "0 1 4 10 12 17",
        "0 1 4 10 18 23 25",
        "0 1 4 9 15 22 32 34",
        "0 1 5 12 25 27 35 41 44",
        "0 1 6 10 23 26 34 41 53 55",
        "0 1 4 13 28 33 47 54 64 70 72",
        "0 2 6 24 29 40 43 55 68 75 76 85",
        "0 2 5 25 37 43 59 70 85 89 98 99 106",
        "0 4 6 20 35 52 59 77 78 86 89 99 122 127",
        "0 4 20 30 57 59 62 76 100 111 123 136 144 145 151",
        "0 1 4 11 26 32 56 68 76 115 117 134 150 163 168 177",
        "0 5 7 17 52 56 67 80 81 100 122 138 159 165 168 191 199",
        "0 2 10 22 53 56 82 83 89 98 130 148 153 167 188 192 205 216",
        "0 1 6 25 32 72 100 108 120 130 153 169 187 190 204 231 233 242 246",
        "0 1 8 11 68 77 94 116 121 156 158 179 194 208 212 228 240 253 259 283",
        "0 2 24 56 77 82 83 95 129 144 179 186 195 255 265 285 293 296 310 329 333",
        "0 1 9 14 43 70 106 122 124 128 159 179 204 223 253 263 270 291 330 341 353 356",
        "0 3 7 17 61 66 91 99 114 159 171 199 200 226 235 246 277 316 329 348 350 366 372",
        "0 9 33 37 38 97 122 129 140 142 152 191 205 208 252 278 286 326 332 353 368 384 403 425",
        "0 12 29 39 72 91 146 157 160 161 166 191 207 214 258 290 316 354 372 394 396 431 459 467 480",
        "0 1 33 83 104 110 124 163 185 200 203 249 251 258 314 318 343 356 386 430 440 456 464 475 487 492",
        "0 3 15 41 66 95 97 106 142 152 220 221 225 242 295 330 338 354 382 388 402 415 486 504 523 546 553",
    )
)
MAX_REDUNDANCY = len(_RULERS)


def offsets(redundancy: int, kind: OffsetKind = "golomb") -> tuple[int, ...]:
    """As many offsets as `redundancy`, the first of them 0."""
    return _RULERS[redundancy - 1] if kind == "golomb" else tuple(range(redundancy))


def largest_redundancy(num_groups: int, kind: OffsetKind = "golomb") -> int:
    """The most copies of a shard type that `num_groups` can hold: N > 2 o_r - 1 with o_r the last offset."""
    return max(r for r in range(1, MAX_REDUNDANCY + 1) if r <= num_groups > 2 * offsets(r, kind)[-1] - 1)


def best_redundancy(num_groups: int, kind: OffsetKind = "golomb") -> int:
    """floor(log2 N + 0.833), the paper's closed form for what takes the least time, as far as it can be had."""
    best = max(r for r in range(MAX_REDUNDANCY + 1) if 2 ** (r - 0.833) <= num_groups)
    return max(1, min(best, largest_redundancy(num_groups, kind)))
