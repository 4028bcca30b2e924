"""Sets of handwritten characters, to be told how many different ones are among them.

The paper's second experiment: a set is six to ten drawings of one to as many characters out of Omniglot's
1,623, each of which twenty people have drawn. Where Omniglot is not at hand, a script of drawn strokes
stands in for it, and says so in its ``name``.
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
    """Drawings of characters, one bit a pixel: all of Omniglot takes 45 MB.

    A drawing is known by one number, character × drawings + drawing, as `index` has them.

    Args:
        name: which data these are.
        bits: the pixels of each drawing row by row, eight a byte, ink = 1 on paper = 0.
        labels: the name of each character.
        side: height and width of a drawing in pixels.

    >>> script = drawn_strokes(characters=12)
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
            given = f"{self.bits.dtype} {list(self.bits.shape)}"
            raise ValueError(f"bits must be uint8 {list(expected)}, got {given}")

    @classmethod
    def from_pixels(
        cls,
        name: str,
        pixels: UInt8[Tensor, "characters drawings side side"],
        labels: tuple[str, ...] | None = None,
    ) -> "Characters":
        """Pack drawings whose pixels are 1 for ink and 0 for paper.

        Args:
            name: which data these are.
            pixels: all drawings of all characters.
            labels: the name of each character; its number unless given.
        """
        if labels is None:
            labels = tuple(str(i) for i in range(len(pixels)))
        return cls(name, np.packbits(pixels.flatten(2).numpy(), axis=-1), labels, pixels.shape[-1])

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def drawings(self) -> int:
        """How many there are of each character."""
        return int(self.bits.shape[1])

    @property
    def index(self) -> Int[Tensor, "characters drawings"]:
        """The numbers of all drawings."""
        return torch.arange(len(self) * self.drawings).view(len(self), self.drawings)

    def pixels(self, index: Int[Tensor, "*shape"]) -> UInt8[Tensor, "*shape {self.side} {self.side}"]:
        """The drawings with these numbers, ink = 1 on paper = 0; -1 stands for blank paper."""
        number = index.flatten().numpy()
        packed = self.bits.reshape(len(self) * self.drawings, -1)[number]
        packed[number < 0] = 0
        pixels = np.unpackbits(packed, axis=-1, count=self.side * self.side)
        return torch.from_numpy(pixels).view(*index.shape, self.side, self.side)


def drawn_strokes(characters: int = 100, drawings: int = DRAWINGS, *, seed: int = 0) -> Characters:
    """The stand-in: an invented script, the same for the same seed.

    Args:
        characters: how many different ones.
        drawings: how many of each.
        seed: tells one script from another.
    """
    return Characters.from_pixels("stand-in: drawn strokes", draw(characters, drawings, side=SIDE, seed=seed))


@dataclass(frozen=True, eq=False)
class Split:
    """The numbers of the drawings to train on, to validate with and to test on.

    Each is ``[characters, drawings]``; a row holds what the part has of one character.
    """

    train: Int[Tensor, "trained drawings"]
    validation: Int[Tensor, "validated drawings"]
    test: Int[Tensor, "tested _"]


def split_by_image(characters: Characters, *, validation: float = 0.1, seed: int = 0) -> Split:
    """The paper's split: half the drawings of every character for training, the other half for the test.

    The validation drawings come out of the training half: all those of a tenth of the characters. A set may
    hold ten drawings of one character, and ten is all that the training half has of it; setting aside some
    drawings of each character would leave too few to draw such a set from. This way the sets of all three
    parts follow the same distribution. The price: the characters set aside are never trained on, which makes
    validation harder than the test, and the test, which has all characters, a little harder than the paper's.
    With ``validation=0.0`` the training half is trained on whole, as in the paper; the test drawings are the
    same for every ``validation``.

    Args:
        characters: what to split.
        validation: share of the characters whose training drawings are set aside.
        seed: tells one split from another.

    >>> split = split_by_image(drawn_strokes(30))
    >>> [list(part.shape) for part in (split.train, split.validation, split.test)]
    [[27, 10], [3, 10], [30, 10]]
    """
    _check_shares(validation=validation)
    order = _shuffled(characters.drawings, (len(characters),), generator_of("drawings", seed))
    shuffled = characters.index.gather(1, order)
    train, test = shuffled.tensor_split([characters.drawings // 2], dim=1)
    aside = _pick(len(characters), validation, generator_of("validation", seed))
    return Split(train[~aside], train[aside], test)


def split_by_character(
    characters: Characters, *, validation: float = 0.1, test: float = 0.3, seed: int = 0
) -> Split:
    """Set Transformer's split: no character of one part occurs in another.

    How many characters go where is our choice. The scores do not compare with those of `split_by_image`.

    Args:
        characters: what to split.
        validation: share of the characters to validate with.
        test: share of the characters to test on; the same ones for every ``validation``.
        seed: tells one split from another.

    >>> split = split_by_character(drawn_strokes(30))
    >>> [list(part.shape) for part in (split.train, split.validation, split.test)]
    [[18, 20], [3, 20], [9, 20]]
    """
    _check_shares(validation=validation, test=test)
    index = characters.index
    tested = _pick(len(index), test, generator_of("test", seed))
    rest = index[~tested]
    aside = _pick(len(rest), validation / (1 - test), generator_of("validation", seed))
    return Split(rest[~aside], rest[aside], index[tested])


def sample_counts(
    sets: int, generator: torch.Generator, *, sizes: tuple[int, int] = SIZES
) -> Int[Tensor, "{sets} {sizes[1]}"]:
    """How often each character of a set occurs in it, as in the appendix.

    n ~ U{6, …, 10}, c ~ U{1, …, n}, and the c characters occur (1, …, 1) + Multinomial(n − c; 1/c, …, 1/c)
    times. The first c numbers of a row are these, the rest are zero.

    Args:
        sets: how many sets.
        generator: the source of randomness.
        sizes: the least and the greatest n.

    >>> sample_counts(3, torch.Generator().manual_seed(0)).sum(1)
    tensor([10, 10,  9])
    """
    smallest, largest = sizes
    if sets < 1 or not 1 <= smallest <= largest:
        raise ValueError(f"expected at least one set of 1 ≤ smallest ≤ largest, got {sets} of {sizes}")
    n = torch.randint(smallest, largest + 1, (sets, 1), generator=generator)
    c = 1 + _below(n, generator)
    place = torch.arange(largest)
    counts = (place < c).long()
    chosen = _below(c.expand(sets, largest), generator)
    return counts.scatter_add(1, chosen, ((place >= c) & (place < n)).long())


def sample_elements(
    sets: int,
    generator: torch.Generator,
    *,
    characters: int,
    drawings: int,
    sizes: tuple[int, int] = SIZES,
) -> tuple[Int[Tensor, "sets n"], Bool[Tensor, "sets n"], Int[Tensor, " sets"]]:
    """Draw sets from a table of ``characters × drawings``, all drawings in a set different.

    The characters of a set are drawn uniformly without replacement, and so are the drawings of each. The
    elements come in random order, so that the order tells nothing.

    Args:
        sets: how many sets.
        generator: the source of randomness.
        characters: rows of the table.
        drawings: columns of the table.
        sizes: the least and the greatest number of elements.

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
    # The k-th of a set's characters takes the places from end[k-1] up to end[k].
    member = torch.searchsorted(end, place, right=True).clamp(max=largest - 1)
    repeat = place - (end - counts).gather(1, member)
    row = torch.rand(sets, characters, generator=generator).topk(largest).indices.gather(1, member)
    order = _shuffled(drawings, (sets, largest), generator)
    column = order[torch.arange(sets).unsqueeze(1), member, repeat]
    index = (row * drawings + column).masked_fill(~mask, 0)
    shuffle = torch.rand(sets, largest, generator=generator).masked_fill(~mask, 2).argsort(1)
    return index.gather(1, shuffle), mask, (counts > 0).sum(1)


@dataclass(frozen=True, eq=False)
class CharacterSets:
    """Sets of drawings, bool images ``[1, side, side]``, and the number of different characters in each.

    Args:
        characters: the drawings.
        part: the numbers of those to draw from, a row a character: a part of a `Split`.
        sizes: the least and the greatest number of elements.

    >>> script = drawn_strokes(characters=30)
    >>> sets = CharacterSets(script, split_by_image(script).train)
    >>> batch, y = sets.batch(4, torch.Generator().manual_seed(0))
    >>> batch.x.shape, batch.sizes.tolist(), y.tolist()
    (torch.Size([4, 10, 1, 105, 105]), [10, 10, 9, 6], [5, 10, 6, 5])
    """

    characters: Characters
    part: Int[Tensor, "rows drawings"]
    sizes: tuple[int, int] = SIZES

    def batch(self, sets: int, generator: torch.Generator) -> tuple[SetBatch, Int[Tensor, " {sets}"]]:
        """Draw sets of the whole part, as the paper does.

        Args:
            sets: how many; the paper takes 32.
            generator: the source of randomness.
        """
        numbers, mask, y = self.sample(sets, generator)
        return SetBatch(self.images(numbers), mask), y

    def sample(
        self, sets: int, generator: torch.Generator
    ) -> tuple[Int[Tensor, "{sets} n"], Bool[Tensor, "{sets} n"], Int[Tensor, " {sets}"]]:
        """Draw sets as `batch` does, but name their drawings by number; -1 in the padding.

        Args:
            sets: how many.
            generator: the source of randomness.

        Returns:
            The numbers of the drawings, the mask, and how many different characters each set has.
        """
        rows, drawings = self.part.shape
        index, mask, y = sample_elements(
            sets, generator, characters=rows, drawings=drawings, sizes=self.sizes
        )
        return self.part.flatten()[index].masked_fill(~mask, -1), mask, y

    def pool_batch(
        self, sets: int, generator: torch.Generator, *, characters: int = 26, drawings: int = 10
    ) -> tuple[SetBatch, Int[Tensor, " {sets}"]]:
        """Draw a pool of the part, and sets of the pool: each of its drawings need be encoded but once.

        Each set by itself follows the same distribution as in `batch`, because a uniform choice out of a
        uniform choice is one. The sets of a batch depend on each other through the pool that they share.

        Args:
            sets: how many.
            generator: the source of randomness.
            characters: how many characters the pool has.
            drawings: how many drawings it has of each.
        """
        rows, columns = self.part.shape
        if characters > rows or drawings > columns:
            raise ValueError(
                f"the pool takes {characters} characters of {drawings} drawings, "
                f"but the part has only {rows} of {columns}"
            )
        row = torch.randperm(rows, generator=generator)[:characters]
        column = _shuffled(columns, (characters,), generator)[:, :drawings]
        pool = self.part[row].gather(1, column)
        index, mask, y = sample_elements(
            sets, generator, characters=characters, drawings=drawings, sizes=self.sizes
        )
        return SetBatch(Shared(self.images(pool.flatten()), index), mask), y

    def images(self, numbers: Int[Tensor, "*shape"]) -> Bool[Tensor, "*shape 1 side side"]:
        """The drawings with these numbers, one channel each, True where there is ink."""
        return self.characters.pixels(numbers).unsqueeze(-3).bool()


def _below(n: Tensor, generator: torch.Generator) -> Tensor:
    """Whole numbers, each uniform from 0 to below its n."""
    return (torch.rand(n.shape, generator=generator, dtype=torch.double) * n).long()


def _shuffled(n: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Random orders of 0, …, n − 1 along a last dimension."""
    return torch.rand(*shape, n, generator=generator).argsort(-1)


def _pick(n: int, share: float, generator: torch.Generator) -> Tensor:
    """A mask that is True at a random share of n characters."""
    return torch.randperm(n, generator=generator) < round(share * n)


def _check_shares(**shares: float) -> None:
    if min(shares.values()) < 0 or sum(shares.values()) >= 1:
        given = ", ".join(f"{name} = {share}" for name, share in shares.items())
        raise ValueError(f"shares must not be negative and must sum to less than 1, got {given}")
