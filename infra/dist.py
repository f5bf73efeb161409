#!/usr/bin/env python3
"""Distributions of this version, in one folder.

    dist.py build OUT     wheels, sdists, chart, images, extension of VS Code, bill of materials
    dist.py measure OUT   MB fetched, seconds to the first exact answer
    dist.py publish OUT --packages URL --registry HOST/PATH

`index.json` lists every file with its size and sha256, and every image with its digest. Images are
built where that is possible: by root, with buildah and debootstrap; `--images no` leaves them out.
`publish` takes files whose digest is still as in the index. It runs `uv publish`, pushes the chart,
and lets skopeo copy the images; logins are those of uv (UV_PUBLISH_TOKEN), of Helm and of skopeo.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import venv
import zipfile
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from xml.sax.saxutils import escape

from tidemill.arrangement.machine_code import PORTABLE
from tidemill.host.warming.ahead import LICENCES
from tidemill.host.warming.wheels import Files, rewritten
from tidemill.manifests.inventory import (
    LOOPED,
    WHOLE,
    Package,
    bill,
    closure,
    jars_of,
    licence_of,
    locked,
    members_of,
)

ROOT = Path(__file__).resolve().parents[1]
_OURS = ROOT / ".tools/uv/bin/uv"
TOOL = str(_OURS) if _OURS.exists() else shutil.which("uv") or "uv"
META = "tidemill[s3,sql,spark,kubernetes,editor,notebook,demo]"
"""Requirement that the bill of materials covers."""
MEMBER_NEEDED = re.compile(r"^(Requires-Dist: tidemill[a-z-]*(?:\[[^]]*\])?)(?=;|$)", re.M)
"""A requirement of a wheel on a member of the workspace, in whatever version."""


def uv(*arguments: str) -> None:
    """Run uv. Raises: SystemExit if it fails."""
    command = [TOOL, *arguments]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(f"dist: {' '.join(command[:2])} failed")


def build(out: Path, with_images: bool) -> None:
    """Write all distributions into an empty or new folder, its index last."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    uv(
        "build", "-q", "--all-packages", "--no-build-isolation", "--python", sys.executable,
        "--no-create-gitignore", "-o", str(out),
    )  # fmt: skip
    pin_members(out)
    ready_loops(out)
    chart(out)
    extension(out)
    (out / "constraints.txt").write_text(constraints())
    (out / "tidemill.cdx.json").write_text(materials(out))
    archive = built_images() if with_images else None
    images = {} if archive is None else kept_images(archive, out)
    files = {
        str(file.relative_to(out)): {"bytes": file.stat().st_size, "sha256": digest_of(file)}
        for file in sorted(out.rglob("*.*"))
    }
    index = {"version": version(), "files": files, "images": images}
    (out / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    held = sum(file["bytes"] for file in files.values())
    print(f"dist: {len(files)} files, {held / 1e6:.1f} MB, {len(images)} images in {out}")


def pin_members(out: Path) -> None:
    """Rewrite wheels so that each requires other members in its own version.

    Ready loops are those of one version, and members of another would find none.
    """

    def change(folder: str, files: Files) -> Files:
        told = f"{folder}/METADATA"
        return {told: MEMBER_NEEDED.sub(rf"\1=={version()}", files[told].decode()).encode()}

    for wheel in out.glob("*.whl"):
        rewritten(wheel, wheel, change)


def ready_loops(out: Path) -> None:
    """A second wheel of the member with loops, for this platform: it needs no compiler of loops.

    Indexes and pip prefer it to the one for all platforms where it fits.
    """
    if lacking := lacking_for_loops():
        print(f"dist: no wheel with ready loops: here lacks {', '.join(lacking)}")
        return
    (wheel,) = out.glob("tidemill_arrangement-*-none-any.whl")
    command = [sys.executable, "-m", "tidemill.host.warming", "--wheel", str(wheel), str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def lacking_for_loops() -> list[str]:
    """Needs of a wheel with ready loops that this machine does not meet."""
    headers = Path(sysconfig.get_path("include"))
    has = {
        "Linux with glibc": platform.libc_ver()[0] == "glibc",
        f"a processor that is {' or '.join(PORTABLE)}": platform.machine() in PORTABLE,
        "cc (Debian package gcc)": bool(shutil.which("cc")),
        "Python.h (Debian package python3-dev)": (headers / "Python.h").exists(),
    }
    return [each for each, is_here in has.items() if not is_here]


def built_images() -> Path | None:
    """The archive of all images of this tree, which is built; None where it cannot be."""
    lacking = [each for each in ("buildah", "debootstrap") if not shutil.which(each)]
    lacking += ["root"] * bool(os.geteuid())
    if lacking:
        print(
            f"dist: no images: root builds them, with buildah and debootstrap; here lacks {lacking}"
        )
        return None
    script = ROOT / "infra/kubernetes/images.sh"
    subprocess.run([ROOT / "infra/setup.sh", "spark"], check=True)
    subprocess.run([script, "build"], check=True)
    told = subprocess.run([script, "archive"], capture_output=True, text=True, check=True)
    return Path(told.stdout.strip())


def kept_images(archive: Path, out: Path) -> dict[str, dict[str, str]]:
    """The images of an archive, which is kept beside the other files, by name."""
    place = out / "images" / archive.name
    place.parent.mkdir()
    shutil.copyfile(archive, place)
    archive_name = str(place.relative_to(out))
    return {name: {"digest": d, "archive": archive_name} for name, d in images_in(place).items()}


def chart(out: Path) -> None:
    """The chart as a package of Helm, in a folder of its own: pip takes any .tgz for a package."""
    import helm_python

    (out / "charts").mkdir()
    helm_python.package(str(ROOT / "charts/tidemill"), destination=str(out / "charts"))


MANIFEST = """<?xml version="1.0" encoding="utf-8"?>
<PackageManifest Version="2.0.0" xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011">
  <Metadata>
    <Identity Language="en-US" Id="{name}" Version="{version}" Publisher="{publisher}"/>
    <DisplayName>{displayName}</DisplayName>
    <Description xml:space="preserve">{description}</Description>
    <Categories>{categories}</Categories>
    <Properties>
      <Property Id="Microsoft.VisualStudio.Code.Engine" Value="{engine}"/>
    </Properties>
    <License>extension/LICENSE</License>
  </Metadata>
  <Installation><InstallationTarget Id="Microsoft.VisualStudio.Code"/></Installation>
  <Dependencies/>
  <Assets>
    <Asset Type="Microsoft.VisualStudio.Code.Manifest" Path="extension/package.json" Addressable="true"/>
    <Asset Type="Microsoft.VisualStudio.Services.Content.License" Path="extension/LICENSE" Addressable="true"/>
  </Assets>
</PackageManifest>
"""
"""Of a package of VS Code, which is a zip with this file beside the folder `extension`."""

CONTENT_TYPES = """<?xml version="1.0" encoding="utf-8"?>
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">{kinds}</Types>
"""


def extension(out: Path) -> None:
    """The extension of VS Code with the packages that its lock names, if npm is there."""
    if not shutil.which("npm"):
        print("dist: no extension for VS Code: npm is missing, which fetches what it needs")
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copytree(ROOT / "docs/editors", folder, dirs_exist_ok=True)
        shutil.copy(ROOT / "LICENSE", folder)
        command = ["npm", "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        pack(folder, out)


def pack(folder: Path, out: Path) -> Path:
    """A package of VS Code from a folder with everything in it; equal folders give equal bytes."""
    told = json.loads((folder / "package.json").read_text())
    files = [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not any(p.startswith(".") for p in file.relative_to(folder).parts)
    ]
    endings = sorted({file.suffix[1:] for file in files if file.suffix} | {"vsixmanifest"})
    kinds = "".join(
        f'<Default Extension="{each}" ContentType="application/octet-stream"/>' for each in endings
    )
    bare = sorted({f"/extension/{f.relative_to(folder).as_posix()}" for f in files if not f.suffix})
    kinds += "".join(
        f'<Override PartName="{escape(each)}" ContentType="text/plain"/>' for each in bare
    )
    texts = {name: escape(told[name]) for name in ("name", "version", "publisher", "displayName")}
    manifest = MANIFEST.format(
        **texts, description=escape(told["description"]), engine=told["engines"]["vscode"],
        categories=escape(",".join(told["categories"])),
    )  # fmt: skip
    package = out / f"tidemill-vscode-{told['version']}.vsix"
    with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as written:
        for name, text in (
            ("extension.vsixmanifest", manifest),
            ("[Content_Types].xml", CONTENT_TYPES.format(kinds=kinds)),
        ):
            written.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
        for file in files:
            info = zipfile.ZipInfo(f"extension/{file.relative_to(folder).as_posix()}")
            written.writestr(info, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return package


def version() -> str:
    """The version of the chart's application, which members and images have."""
    found = re.search(
        r"^appVersion: (\S+)", (ROOT / "charts/tidemill/Chart.yaml").read_text(), re.M
    )
    assert found
    return found[1]


def constraints() -> str:
    """The versions that tests ran with, for `pip install -c`."""
    lock = (ROOT / "requirements.lock").read_text()
    lines = re.findall(r"^([A-Za-z0-9._-]+==[^\\\n]*?) *\\$", lock, re.M)
    return "".join(f"{line}\n" for line in lines)


def materials(out: Path) -> str:
    """The bill of materials of the meta distribution with its extras, CycloneDX 1.6."""
    lock, members = locked((ROOT / "requirements.lock").read_text()), members_of(ROOT)
    names = sorted(closure([META], lock, members))
    packages = [Package(n, *lock[n], licence_of(n)) for n in names if n not in members]
    document = json.loads(bill(WHOLE, packages, jars_of(ROOT)))
    document["metadata"]["component"] = {
        "type": "application", "name": "tidemill", "version": version(),
    }  # fmt: skip
    for name in (each for each in names if each in members):
        (wheel,) = out.glob(f"{name.replace('-', '_')}-{version()}-py3-none-any.whl")
        document["components"].append(component(name, wheel))
    for wheel in out.glob(f"{LOOPED.replace('-', '_')}-{version()}-cp*.whl"):
        ours = component(LOOPED, wheel)
        ours |= {"bom-ref": wheel.name, "purl": f"{ours['purl']}?file_name={wheel.name}"}
        document["components"].append({**ours, "licenses": [{"expression": LICENCES}]})
    return json.dumps(document, indent=1) + "\n"


def component(name: str, wheel: Path) -> dict[str, Any]:
    """A member as the bill of materials has it: by its wheel for all platforms, or another one."""
    return {
        "type": "library", "bom-ref": name, "name": name, "version": version(),
        "purl": f"pkg:pypi/{name}@{version()}", "licenses": [{"license": {"id": "Apache-2.0"}}],
        "hashes": [{"alg": "SHA-256", "content": digest_of(wheel)}],
    }  # fmt: skip


def images_in(archive: Path) -> dict[str, str]:
    """Name → digest of each image in an archive of OCI."""
    with tarfile.open(archive) as file:
        index = file.extractfile("./index.json")
        assert index is not None
        manifests = json.load(index)["manifests"]
    return {
        each["annotations"]["org.opencontainers.image.ref.name"].removeprefix("localhost/"): each[
            "digest"
        ]
        for each in manifests
    }


def digest_of(file: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with file.open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest()


def publish(out: Path, packages: str, registry: str) -> None:
    """Upload what the index lists, and nothing that has changed since."""
    index = json.loads((out / "index.json").read_text())
    changed = [n for n, told in index["files"].items() if digest_of(out / n) != told["sha256"]]
    if changed:
        sys.exit(
            f"dist: changed since the index was written: {', '.join(changed)}; make dist again"
        )
    if index["images"] and not shutil.which("skopeo"):
        sys.exit("dist: skopeo is missing, which copies the images: install it first")
    files = [str(out / name) for name in index["files"] if name.endswith((".whl", ".tar.gz"))]
    if packages:
        uv("publish", "--publish-url", packages, *files)
    if registry:
        import helm_python

        (package,) = (n for n in index["files"] if n.endswith(".tgz"))
        helm_python.push(str(out / package), f"oci://{registry}/charts")
        copied(index["images"], out, registry)


def copied(images: dict[str, dict[str, str]], out: Path, registry: str) -> None:
    """Copy images to a registry by their digests, which it then has. Raises: CalledProcessError."""
    with tempfile.TemporaryDirectory() as layout:
        for archive in {each["archive"] for each in images.values()}:
            with tarfile.open(out / archive) as file:
                file.extractall(layout, filter="data")
        for name, told in images.items():
            source, target = f"oci:{layout}:localhost/{name}", f"docker://{registry}/{name}"
            with tempfile.NamedTemporaryFile() as said:
                command = ["skopeo", "copy", "--preserve-digests", "--digestfile", said.name]
                subprocess.run([*command, source, target], check=True)
                digest = Path(said.name).read_text().strip()
            if digest != told["digest"]:
                sys.exit(f"dist: {name} has the digest {digest} and not that of the index")


def measure(out: Path) -> None:
    """Install in empty folders with fresh homes and no Java, ask, and print what it took."""
    with tempfile.TemporaryDirectory() as place:
        venv.create(Path(place) / "venv", with_pip=True, symlinks=True)
        tools = Path(place) / "venv/bin"
        packages = ("--no-cache-dir", "--find-links", str(out), "--report", "report.json")
        install = [str(tools / "pip"), "install", "-q", *packages, "tidemill"]
        took("pip install", Path(place), install, [str(tools / "tidemill")])
        report = json.loads((Path(place) / "report.json").read_text())
    urls = [each["download_info"]["url"] for each in report["install"]]
    fetched = sorted((bytes_of(url), url.rpartition("/")[2]) for url in urls)
    print(f"{sum(size for size, _ in fetched) / 1e6:.1f} MB fetched, of these:")
    for size, name in reversed(fetched[-6:]):
        print(f"  {size / 1e6:5.1f} MB {name}")
    with tempfile.TemporaryDirectory() as place:
        run = [TOOL, "tool", "run", "-q", "--python", sys.executable, "--find-links", str(out)]
        command = [*run, "--from", "tidemill", "tidemill"]
        took("uvx", Path(place), [*command, "completion", "bash"], command)


def took(name: str, folder: Path, install: list[str], tidemill: list[str]) -> None:
    """Print what each phase takes from an empty folder to an exact answer of a sample."""
    (folder / "bin").mkdir()
    for each in ("realpath", "dirname"):  # the scripts of uv call them
        (folder / "bin" / each).symlink_to(shutil.which(each) or each)
    environment = {
        **{k: v for k, v in os.environ.items() if "CERT" in k or "PROXY" in k.upper()},
        "HOME": str(folder), "PATH": f"{Path(tidemill[0]).parent}:{folder}/bin",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }  # fmt: skip

    def run(*command: str) -> None:
        said = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if said.returncode:
            sys.exit(f"dist: {' '.join(command)} failed: {said.stderr}")

    phases = Phases()
    run(*install)
    phases.end("packages are installed")
    run(*tidemill, "init", "sensors")
    phases.end("the sample is written")
    place = ["--grpc", "127.0.0.1:0", "--http-port", "0", "--log-level", "error"]
    up, listens = [*tidemill, "up", "--sample", "sensors", *place], folder / ".tidemill"
    with subprocess.Popen(up, cwd=folder, env=environment) as server:
        while not (found := list(listens.glob("grpc.address"))):
            if server.poll() is not None:
                sys.exit("dist: tidemill up ended")
            time.sleep(0.05)
        phases.end("the server listens")
        run(*tidemill, "--address", found[0].read_text().strip(), "query", "hot(s, c)", "--wait")
        phases.end("an answer is exact")
        server.terminate()
    used = f"of a processor {used_s() - phases.used_s:.1f} s until the end"
    print(f"{name}: {phases.seconds():.1f} s, {used}")
    for line in phases.lines:
        print(f"  {line}")
    print(f"  load of the machine: {os.getloadavg()[0]:.0f}")


class Phases:
    """Phases one after the other: seconds of each, and the processor of what has ended in it."""

    def __init__(self) -> None:
        self.began, self.used_s = time.monotonic(), used_s()
        self.lines: list[str] = []
        self._ended, self._used_s = self.began, self.used_s

    def end(self, name: str) -> None:
        """End a phase once what it is named after is so."""
        now, used = time.monotonic(), used_s()
        took = f"{now - self._ended:6.1f} s, processor {used - self._used_s:5.1f} s"
        self.lines.append(f"{took}: until {name}")
        self._ended, self._used_s = now, used

    def seconds(self) -> float:
        """Seconds from the beginning to the end of the last phase."""
        return self._ended - self.began


def used_s() -> float:
    """Seconds of a processor that programs begun here have used, once they have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def bytes_of(url: str) -> int:
    """Bytes to fetch of a file of an index, or of one on disk."""
    with urlopen(Request(url, method="HEAD")) as answer:
        return int(answer.headers["Content-Length"])


def main() -> None:
    """Do what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("build", "measure", "publish"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--packages", default="", help="Upload address of an index of packages.")
    parser.add_argument("--registry", default="", help="Registry of images and charts: HOST/PATH.")
    parser.add_argument("--images", default="yes", choices=("yes", "no"), help="Build images too.")
    chosen = parser.parse_args()
    if chosen.command == "publish":
        publish(chosen.out.resolve(), chosen.packages, chosen.registry)
    elif chosen.command == "measure":
        measure(chosen.out.resolve())
    else:
        assert find_spec("hatchling"), "make setup first"
        build(chosen.out.resolve(), chosen.images == "yes")


if __name__ == "__main__":
    main()
