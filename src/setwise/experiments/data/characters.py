"""Sets of handwritten characters; the target is the number of different characters.

The paper's second experiment: a set is six to ten drawings of one or more of Omniglot's 1,623 characters,
each drawn by twenty people. If Omniglot is not available, a synthetic script is used instead, as its ``name``
says.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from setwise.experiments.data.strokes import draw
from setwise.sets import SetBatch, Shared
from setwise.training.seeding import generator as generator_of

SIDE = 105
DRAWINGS = 20
SIZES = (6, 10)


@dataclass(frozen=True, eq=False)
class Characters:
    """Drawings of characters with one bit per pixel: all of Omniglot takes 45 MB.

    A drawing is identified by the number character × drawings + drawing, see `index`.

    Args:
        name: name of the data set.
        bits: pixels of each drawing in row-major order, eight per byte; ink is 1, paper 0.
        labels: name of each character.
        side: height and width of a drawing in pixels.

    >>> script = synthetic_characters(characters=12)
    >>> len(script), script.drawings, script.name
    (12, 20, 'stand-in: drawn strokes')
    >>> script.pixels(script.index[:2, :5]).shape
    torch.Size([2, 5, 105, 105])
    """

    name: str
    bits: UInt8[np.ndarray, "characters drawings bytes"]
    labels: tuple[str, ...]
    side: int = SIDE

    def __post_init__(self) -> None:
        expected = (len(self.labels), self.bits.shape[1], -(-self.side * self.side // 8))
        if self.bits.dtype != np.uint8 or self.bits.shape != expected:
            got = f"{self.bits.dtype} {list(self.bits.shape)}"
            raise ValueError(f"bits must be uint8 {list(expected)}, got {got}")

    @classmethod
    def from_pixels(
        cls,
        name: str,
        pixels: UInt8[Tensor, "characters drawings side side"],
        labels: tuple[str, ...] | None = None,
    ) -> "Characters":
        """Pack drawings whose pixels are 1 for ink and 0 for paper.

        Args:
            name: name of the data set.
            pixels: all drawings of all characters.
            labels: name of each character; by default its index.
        """
        if labels is None:
            labels = tuple(str(i) for i in range(len(pixels)))
        return cls(name, np.packbits(pixels.flatten(2).numpy(), axis=-1), labels, pixels.shape[-1])

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def drawings(self) -> int:
        """Number of drawings per character."""
        return int(self.bits.shape[1])

    @property
    def index(self) -> Int[Tensor, "characters drawings"]:
        """Numbers of all drawings."""
        return torch.arange(len(self) * self.drawings).view(len(self), self.drawings)

    def pixels(self, index: Int[Tensor, "*shape"]) -> UInt8[Tensor, "*shape {self.side} {self.side}"]:
        """Drawings with the given numbers; ink is 1, paper 0; the number -1 gives a blank image."""
        number = index.flatten().numpy()
        packed = self.bits.reshape(len(self) * self.drawings, -1)[number]
        packed[number < 0] = 0
        pixels = np.unpackbits(packed, axis=-1, count=self.side * self.side)
        return torch.from_numpy(pixels).view(*index.shape, self.side, self.side)


def synthetic_characters(characters: int = 100, drawings: int = DRAWINGS, *, seed: int = 0) -> Characters:
    """Synthetic stand-in for Omniglot, reproducible from the seed.

    Args:
        characters: number of characters.
        drawings: drawings per character.
        seed: random seed.
    """
    return Characters.from_pixels("stand-in: drawn strokes", draw(characters, drawings, side=SIDE, seed=seed))


@dataclass(frozen=True, eq=False)
class Split:
    """Drawing numbers of the training, validation and test parts.

    Each is ``[characters, drawings]``, one row per character.
    """

    train: Int[Tensor, "trained drawings"]
    validation: Int[Tensor, "validated drawings"]
    test: Int[Tensor, "tested _"]


def split_by_image(characters: Characters, *, validation: float = 0.1, seed: int = 0) -> Split:
    """The paper's split: half of the drawings of each character for training, the other half for testing.

    The validation part holds all training drawings of a tenth of the characters. A set may hold ten drawings
    of one character, which is all that the training half has of it, so holding out some drawings of every
    character would leave too few for such a set. With this split the sets of all parts follow the same
    distribution. In return, the held-out characters are never trained on, so validation is harder than
    testing, and testing, which uses all characters, is slightly harder than in the paper. With
    ``validation=0.0`` the whole training half is used for training, as in the paper; the test drawings are
    the same for every ``validation``.

    Args:
        characters: data to split.
        validation: share of the characters whose training drawings are held out.
        seed: random seed.

    >>> split = split_by_image(synthetic_characters(30))
    >>> [list(part.shape) for part in (split.train, split.validation, split.test)]
    [[27, 10], [3, 10], [30, 10]]
    """
    _check_shares(validation=validation)
    order = _random_orders(characters.drawings, (len(characters),), generator_of("drawings", seed))
    shuffled = characters.index.gather(1, order)
    train, test = shuffled.tensor_split([characters.drawings // 2], dim=1)
    aside = _random_mask(len(characters), validation, generator_of("validation", seed))
    return Split(train[~aside], train[aside], test)


def split_by_character(
    characters: Characters, *, validation: float = 0.1, test: float = 0.3, seed: int = 0
) -> Split:
    """Set Transformer's split: the parts have no character in common.

    The shares are our choice. Scores are not comparable with those of `split_by_image`.

    Args:
        characters: data to split.
        validation: share of the characters in the validation part.
        test: share of the characters in the test part; the same characters for every ``validation``.
        seed: random seed.

    >>> split = split_by_character(synthetic_characters(30))
    >>> [list(part.shape) for part in (split.train, split.validation, split.test)]
    [[18, 20], [3, 20], [9, 20]]
    """
    _check_shares(validation=validation, test=test)
    index = characters.index
    tested = _random_mask(len(index), test, generator_of("test", seed))
    rest = index[~tested]
    aside = _random_mask(len(rest), validation / (1 - test), generator_of("validation", seed))
    return Split(rest[~aside], rest[aside], index[tested])


def sample_counts(
    sets: int, generator: torch.Generator, *, sizes: tuple[int, int] = SIZES
) -> Int[Tensor, "{sets} {sizes[1]}"]:
    """Number of occurrences of each character of a set, as in the appendix.

    n ~ U{6, …, 10}, c ~ U{1, …, n}, and the c characters occur (1, …, 1) + Multinomial(n − c; 1/c, …, 1/c)
    times. The first c numbers of a row are these counts; the rest are zero.

    Args:
        sets: number of sets.
        generator: random generator.
        sizes: minimum and maximum n.

    >>> sample_counts(3, torch.Generator().manual_seed(0)).sum(1)
    tensor([10, 10,  9])
    """
    smallest, largest = sizes
    if sets < 1 or not 1 <= smallest <= largest:
        raise ValueError(f"expected sets >= 1 and 1 <= smallest <= largest size, got {sets} sets of {sizes}")
    n = torch.randint(smallest, largest + 1, (sets, 1), generator=generator)
    c = 1 + _random_below(n, generator)
    place = torch.arange(largest)
    counts = (place < c).long()
    chosen = _random_below(c.expand(sets, largest), generator)
    return counts.scatter_add(1, chosen, ((place >= c) & (place < n)).long())


def sample_elements(
    sets: int,
    generator: torch.Generator,
    *,
    characters: int,
    drawings: int,
    sizes: tuple[int, int] = SIZES,
) -> tuple[Int[Tensor, "sets n"], Bool[Tensor, "sets n"], Int[Tensor, " sets"]]:
    """Draw sets from a table of ``characters × drawings``; the drawings in a set are all different.

    The characters of a set are drawn uniformly without replacement, and so are the drawings of each
    character. The elements are in random order.

    Args:
        sets: number of sets.
        generator: random generator.
        characters: rows of the table.
        drawings: columns of the table.
        sizes: minimum and maximum number of elements.

    Returns:
        The elements as row × drawings + column (zero in the padding), the mask, and the number of different
        characters in each set.
    """
    largest = sizes[1]
    if min(characters, drawings) < largest:
        raise ValueError(
            f"sets of up to {largest} elements need at least {largest} characters of {largest} drawings, "
            f"got {characters} of {drawings}"
        )
    counts = sample_counts(sets, generator, sizes=sizes)
    end = counts.cumsum(1)
    place = torch.arange(largest).expand(sets, largest).contiguous()
    mask = place < end[:, -1:]
    # The k-th character of a set occupies the positions end[k-1] to end[k] - 1.
    member = torch.searchsorted(end, place, right=True).clamp(max=largest - 1)
    repeat = place - (end - counts).gather(1, member)
    row = torch.rand(sets, characters, generator=generator).topk(largest).indices.gather(1, member)
    order = _random_orders(drawings, (sets, largest), generator)
    column = order[torch.arange(sets).unsqueeze(1), member, repeat]
    index = (row * drawings + column).masked_fill(~mask, 0)
    shuffle = torch.rand(sets, largest, generator=generator).masked_fill(~mask, 2).argsort(1)
    return index.gather(1, shuffle), mask, (counts > 0).sum(1)


@dataclass(frozen=True, eq=False)
class CharacterSets:
    """Sets of drawings, bool images ``[1, side, side]``, and the number of different characters in each.

    Args:
        characters: the drawings.
        part: drawing numbers to sample from, one row per character: a part of a `Split`.
        sizes: minimum and maximum number of elements.

    >>> script = synthetic_characters(characters=30)
    >>> sets = CharacterSets(script, split_by_image(script).train)
    >>> batch, y = sets.batch(4, torch.Generator().manual_seed(0))
    >>> batch.x.shape, batch.sizes.tolist(), y.tolist()
    (torch.Size([4, 10, 1, 105, 105]), [10, 10, 9, 6], [5, 10, 6, 5])
    """

    characters: Characters
    part: Int[Tensor, "rows drawings"]
    sizes: tuple[int, int] = SIZES

    def batch(self, sets: int, generator: torch.Generator) -> tuple[SetBatch, Int[Tensor, " {sets}"]]:
        """Draw sets from the whole part, as in the paper.

        Args:
            sets: number of sets; 32 in the paper.
            generator: random generator.
        """
        numbers, mask, y = self.sample(sets, generator)
        return SetBatch(self.images(numbers), mask), y

    def sample(
        self, sets: int, generator: torch.Generator
    ) -> tuple[Int[Tensor, "{sets} n"], Bool[Tensor, "{sets} n"], Int[Tensor, " {sets}"]]:
        """Draw sets as `batch` does, but return drawing numbers instead of images; -1 in the padding.

        Args:
            sets: number of sets.
            generator: random generator.

        Returns:
            The drawing numbers, the mask, and the number of different characters in each set.
        """
        rows, drawings = self.part.shape
        index, mask, y = sample_elements(
            sets, generator, characters=rows, drawings=drawings, sizes=self.sizes
        )
        return self.part.flatten()[index].masked_fill(~mask, -1), mask, y

    def pool_batch(
        self, sets: int, generator: torch.Generator, *, characters: int = 26, drawings: int = 10
    ) -> tuple[SetBatch, Int[Tensor, " {sets}"]]:
        """Draw a pool from the part, and sets from the pool, so that each drawing is encoded only once.

        Each set has the same distribution as in `batch`, because a uniform sample of a uniform sample is
        uniform. The sets of a batch are dependent, because they share the pool.

        Args:
            sets: number of sets.
            generator: random generator.
            characters: number of characters in the pool.
            drawings: drawings per character in the pool.
        """
        rows, columns = self.part.shape
        if characters > rows or drawings > columns:
            raise ValueError(
                f"the pool needs {characters} characters with {drawings} drawings each, "
                f"got only {rows} with {columns}"
            )
        row = torch.randperm(rows, generator=generator)[:characters]
        column = _random_orders(columns, (characters,), generator)[:, :drawings]
        pool = self.part[row].gather(1, column)
        index, mask, y = sample_elements(
            sets, generator, characters=characters, drawings=drawings, sizes=self.sizes
        )
        return SetBatch(Shared(self.images(pool.flatten()), index), mask), y

    def images(self, numbers: Int[Tensor, "*shape"]) -> Bool[Tensor, "*shape 1 side side"]:
        """Images with the given drawing numbers, one channel, True for ink."""
        return self.characters.pixels(numbers).unsqueeze(-3).bool()


def _random_below(n: Tensor, generator: torch.Generator) -> Tensor:
    """Random integers, each uniform on 0, …, n − 1."""
    return (torch.rand(n.shape, generator=generator, dtype=torch.double) * n).long()


def _random_orders(n: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Random permutations of 0, …, n − 1 along the last dimension."""
    return torch.rand(*shape, n, generator=generator).argsort(-1)


def _random_mask(n: int, share: float, generator: torch.Generator) -> Tensor:
    """Mask that is True for a random share of n characters."""
    return torch.randperm(n, generator=generator) < round(share * n)


def _check_shares(**shares: float) -> None:
    if min(shares.values()) < 0 or sum(shares.values()) >= 1:
        given = ", ".join(f"{name} = {share}" for name, share in shares.items())
        raise ValueError(f"shares must not be negative and must sum to less than 1, got {given}")
