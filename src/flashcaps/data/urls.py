"""Where each data set is published, and how its files are known to be right.

`verified` says that the checksum was computed from a real copy of the file (for Fashion-MNIST, of the same gzip
stream under another header). The others are the checksums their authors or other libraries publish. No address
could be reached when this list was written: what is checked is what arrives, wherever it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Member:
    """A file in an archive, and where it goes under the data set's folder; size 0 and checksum "" are not known."""

    path: str
    file: str
    size: int = 0
    checksum: str = ""


@dataclass(frozen=True)
class Remote:
    """A published file: "md5:..." or "sha256:..." of its bytes, and (`content`) of what it unpacks to.

    A gzip file that unpacks to `content` is right however it was packed.
    """

    file: str
    urls: tuple[str, ...]
    size: int
    checksum: str
    verified: bool = False
    content: str = ""
    members: tuple[Member, ...] = ()


def _idx(hosts: tuple[str, ...], rows: tuple[tuple[str, int, str, str], ...]) -> tuple[Remote, ...]:
    return tuple(
        Remote(f"{stem}-ubyte.gz", tuple(f"{host}{stem}-ubyte.gz" for host in hosts), size, f"md5:{md5}", True,
               f"sha256:{content}")
        for stem, size, md5, content in rows
    )  # fmt: skip


_MNIST = _idx(
    ("http://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    (
        ("train-images-idx3", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873",
         "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        ("train-labels-idx1", 28_881, "d53e105ee54ea40749a09fcbcd1e9432",
         "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        ("t10k-images-idx3", 1_648_877, "9fb629c4189551a2d022fa330f9573f3",
         "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        ("t10k-labels-idx1", 4_542, "ec29112dd5afa0611ce80d1b7f02629c",
         "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
)  # fmt: skip

_FASHION = _idx(
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    (
        ("train-images-idx3", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
         "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
        ("train-labels-idx1", 29_515, "25c81989df183df01b3e8a0aad5dffbe",
         "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        ("t10k-images-idx3", 4_422_102, "bef4ecab320f06d8554ea6380940ec79",
         "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        ("t10k-labels-idx1", 5_148, "bb300cfdad3c16e7a12a480ee83cd310",
         "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    ),
)  # fmt: skip

# The six files' checksums are verified, the archive's is not.
_CIFAR10 = Remote(
    "cifar-10-binary.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    170_052_171,
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
    members=tuple(
        Member(f"cifar-10-batches-bin/{file}", file, 30_730_000, f"md5:{md5}")
        for file, md5 in (
            ("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"),
            ("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692"),
            ("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421"),
            ("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb"),
            ("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d"),
            ("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"),
        )
    ),
)

_CIFAR100 = Remote(
    "cifar-100-binary.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
    168_513_733,
    "md5:03b5dce01913d631647c71ecec9e9cb8",
    members=(
        Member("cifar-100-binary/train.bin", "train.bin", 153_700_000),
        Member("cifar-100-binary/test.bin", "test.bin", 30_740_000),
    ),
)

_SVHN = tuple(
    Remote(file, (f"http://ufldl.stanford.edu/housenumbers/{file}",), size, f"md5:{md5}")
    for file, size, md5 in (
        ("train_32x32.mat", 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373"),
        ("test_32x32.mat", 64_275_384, "eb5a983be6a315427106f1b164d9cef3"),
    )
)

_TRAINING, _TESTING = "smallnorb-5x46789x9x18x6x2x96x96-training", "smallnorb-5x01235x9x18x6x2x96x96-testing"
_NORB = tuple(
    Remote(f"{stem}.mat.gz", (f"https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/{stem}.mat.gz",), size, f"sha256:{sha}")
    for stem, size, sha in (
        (f"{_TRAINING}-dat", 131_896_188, "5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873"),
        (f"{_TRAINING}-cat", 348, "2784e542c1922060691090952b6cd6278879a216c90f81476f0f00256d42cdaa"),
        (f"{_TRAINING}-info", 71_052, "de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32"),
        (f"{_TESTING}-dat", 130_799_817, "cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474"),
        (f"{_TESTING}-cat", 347, "ecaf6d5bb8c3bc5eab9cf0258f6d2198dd474e016e374836fc097f2e5ff509ff"),
        (f"{_TESTING}-info", 10_428, "16adf314226327ee006d1a44db8cfef52773c06c829951d5653a9f6f310248a2"),
    )
)

_AFFNIST = Remote(
    "test.mat.zip",
    ("https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/test.mat.zip",),
    121_743_191,
    "sha256:2cde38ec83ee2ebfd7b901f8be5a09efb17a1bda04771f9b4905751eb945c01a",
    members=(Member("test.mat", "test.mat"),),
)

_SST = Remote(
    "trainDevTestTrees_PTB.zip",
    ("https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip",),
    789_539,
    "sha256:5c613a4f673fc74097d523a2c83f38e0cc462984d847b82c7aaf36b01cbbbfcc",
    verified=True,
    members=tuple(
        Member(f"trees/{part}.txt", f"trees/{part}.txt", size, f"sha256:{sha}")
        for part, size, sha in (
            ("train", 2_160_058, "e2f3f41b0b1e6d4dddc0effe3bfc2d27ed8928079aa9a03d652311614fc5feb7"),
            ("dev", 280_825, "0e9336aed6e4730e19f58d00a77b3f0297efdb755f7b5e598c98a05e3f97ea40"),
            ("test", 559_614, "6e54806dee95cf80cd918e7dfb3f6770f6df24bf826f289a4d1f709e1c8f6761"),
        )
    ),
)

# folder under the root -> what is published
SOURCES: dict[str, tuple[Remote, ...]] = {
    "mnist": _MNIST,
    "fashion-mnist": _FASHION,
    "cifar10": (_CIFAR10,),
    "cifar100": (_CIFAR100,),
    "svhn": _SVHN,
    "smallnorb": _NORB,
    "affnist": (_AFFNIST,),
    "sst": (_SST,),
}

# data set -> the folders it reads; nothing for those that come along or are rendered
NEEDS: dict[str, tuple[str, ...]] = {
    "mnist": ("mnist",),
    "fashion_mnist": ("fashion-mnist",),
    "cifar10": ("cifar10",),
    "cifar100": ("cifar100",),
    "svhn": ("svhn",),
    "smallnorb": ("smallnorb",),
    "affnist": ("mnist", "affnist"),
    "affnist_style": ("mnist",),
    "translated_mnist": ("mnist",),
    "multimnist": ("mnist",),
    "diverse_multimnist": ("mnist",),
    "sst5": ("sst",),
    "sst2": ("sst",),
    "digits": (),
    "synthetic_norb": (),
}
