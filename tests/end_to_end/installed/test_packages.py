# SPDX-License-Identifier: Apache-2.0
"""Packages that scripts/package makes: the Debian package, the tarball and the wheel, each unpacked or installed and run."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import unittest

from harness import AISP, FIXTURES, QUICK, SOURCE, EndToEnd

BUILD = pathlib.Path(AISP).parent
# As debian/control and pip write it; what is beyond these is no longer "glibc and the driver alone".
NEEDED = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
GLIBC_OF_PACKAGES = (2, 34)


def run(*command, **keywords):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, **keywords)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def made_on_debian_12():
    return 'VERSION_ID="12"' in pathlib.Path("/etc/os-release").read_text() and "ID=debian" in pathlib.Path("/etc/os-release").read_text()


class Packages(EndToEnd):
    def package(self, kind, pattern):
        maker = {**os.environ, "DEBFULLNAME": "Ada Maker", "DEBEMAIL": "ada@example.org"}
        run(SOURCE / "scripts/package", "--build", BUILD, "--out", self.work / "out", "--only", kind, env=maker)
        found = list((self.work / "out").glob(pattern))
        self.assertEqual(len(found), 1)
        return found[0]

    def assert_runs(self, program):
        self.assert_code(self.call("list-targets", program=str(program)), 0)
        self.assertIn("recorded", self.call("explain", "ch01:coalescing", program=str(program)).out)

    def assert_measures(self, python, **environment):
        """Checks the pair that `aisp new --python` writes, by the module that was installed."""
        (self.work / "script.py").write_text((SOURCE / "templates/starter/python.py").read_text().replace("ROWS, COLUMNS = 512", "ROWS, COLUMNS = 64"))
        said = run(python, "script.py", cwd=self.work, env={**self.environment(), "AISP_BUILD": "", "PYTHONPATH": "", **environment})
        self.assertRegex(said, r"python:starter +all_at_once +[0-9.]+x")

    def assert_is_portable(self, program):
        dynamic = run("readelf", "-d", program)
        self.assertLessEqual(set(re.findall(r"NEEDED.*\[(.*)\]", dynamic)), NEEDED)
        self.assertNotIn("RUNPATH", dynamic)
        self.assertNotRegex(run("readelf", "-SW", program), r"\.(debug_info|symtab)\b", "it is not stripped")
        asked = {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([0-9.]+)", run("objdump", "-T", program))}
        if made_on_debian_12() and "AISP_SANITIZED" not in os.environ:
            self.assertLessEqual(max(asked), GLIBC_OF_PACKAGES, "packages no longer run on every distribution that docs/install.md names")
        return max(asked)


@unittest.skipIf("AISP_SANITIZED" in os.environ, "sanitizers bring libraries that no package has")
class Archives(Packages):
    def test_the_debian_package_holds_all_and_depends_on_glibc_alone(self):
        package = self.package("deb", "aisp_*_amd64.deb")
        fields = dict(line.split(": ", 1) for line in run("dpkg-deb", "-f", package).splitlines() if re.match(r"\w[\w-]*: ", line))
        self.assertEqual((fields["Package"], fields["Maintainer"]), ("aisp", "Ada Maker <ada@example.org>"))
        self.assertEqual({word.split()[0] for word in fields["Depends"].split(", ")}, {"libc6", "libgcc-s1"})
        run("dpkg-deb", "-x", package, self.work / "root")
        usr = self.work / "root/usr"
        for file in ("bin/aisp", "share/aisp/expectations/h200/ch01.json", "share/aisp/docs/method.md", "share/aisp/chapters/ch01/README.md",
                     "share/aisp/scripts/system-tuning.sh", "share/man/man1/aisp.1", "share/bash-completion/completions/aisp",
                     "lib/cmake/aisp/aispConfig.cmake", "lib/cmake/aisp/scripts/check-pair", "share/doc/aisp/copyright"):
            self.assertTrue((usr / file).is_file(), file)
        self.assertEqual([path.name for path in (self.work / "root").iterdir()], ["usr"])
        asked = self.assert_is_portable(usr / "bin/aisp")
        self.assertIn(f"libc6 (>= {asked[0]}.{asked[1]})", fields["Depends"])
        self.assert_runs(usr / "bin/aisp")
        self.assert_is_portable(usr / "lib/aisp/python/aisp/libaisp.so")
        self.assert_measures(sys.executable, PYTHONPATH=str(usr / "lib/aisp/python"))

    def test_the_tarball_runs_where_it_is_unpacked(self):
        archive = self.package("tarball", "aisp-*-linux-x86_64.tar.gz")
        with tarfile.open(archive) as tar:
            self.assertEqual({name.split("/")[0] for name in tar.getnames()}, {archive.name[:-len(".tar.gz")]})
            tar.extractall(self.work / "anywhere")
        program = self.work / "anywhere" / archive.name[:-len(".tar.gz")] / "bin/aisp"
        self.assert_is_portable(program)
        self.assert_runs(program)
        self.assert_measures(sys.executable, PYTHONPATH=str(program.parent.parent / "lib/aisp/python"))


@unittest.skipIf("AISP_SANITIZED" in os.environ, "sanitizers bring libraries that no package has")
class Wheel(Packages):
    def venv(self):
        """Sees Debian's pandas; lone() takes that away again."""
        try:
            import pandas  # noqa: F401
        except ImportError:
            self.fail(f"{sys.executable} has no pandas: apt-get install python3-pandas")
        folder = self.work / "venv"
        try:
            run(sys.executable, "-m", "venv", "--system-site-packages", folder)
        except AssertionError as error:
            self.fail(f"a virtual environment cannot be made: apt-get install python3-venv\n{error}")
        return folder

    def lone(self, venv):
        file = venv / "pyvenv.cfg"
        file.write_text(file.read_text().replace("include-system-site-packages = true", "include-system-site-packages = false"))

    def test_the_wheel_in_a_fresh_environment(self):
        wheel = self.package("wheel", "aisp_bench-*.whl")
        python = self.venv() / "bin/python"
        environment = {**self.environment(), "PYTHONPATH": ""}
        run(python, "-m", "pip", "install", "--no-index", "--no-deps", "--disable-pip-version-check", wheel)
        program = python.parent / "aisp"
        asked = self.assert_is_portable(program)
        self.assertIn(f"-py3-none-manylinux_{asked[0]}_{asked[1]}_x86_64.whl", wheel.name)
        self.assert_runs(program)
        version = run(program, "--version").split()[1]
        self.assertTrue(version.startswith(wheel.name.split("-")[1]), version)

        self.assert_code(self.call("run", "-t", "ch90:good", *QUICK, "--run-id", "mine", program=FIXTURES), 0)
        two_lines = "import aisp; run = aisp.load('latest'); print(len(run.samples), *run.variants.variant)"
        said = run(python, "-I", "-c", two_lines, cwd=self.work, env=environment).split()
        self.assertEqual(said[1:], ["slow", "doubled", "added", "library"])
        self.assertGreaterEqual(int(said[0]), 4 * 5)
        for tests in sorted((SOURCE / "python/tests").glob("test_*.py")):
            run(python, tests, cwd=self.work, env=environment)
        self.assert_measures(python)

        self.lone(python.parent.parent)
        alone = subprocess.run([python, "-I", "-c", "import aisp; aisp.load('latest')"], cwd=self.work, capture_output=True, text=True, timeout=60)
        self.assertEqual(alone.stderr.splitlines()[-1],
                         'aisp.results.Error: aisp.load gives pandas frames, and pandas is not installed; pip install pandas')
        run(python, "-m", "pip", "uninstall", "--yes", "--disable-pip-version-check", "aisp-bench")
        self.assertFalse(program.exists())
        self.assertFalse((python.parent.parent / "share/aisp").exists())


@unittest.skipIf("AISP_SANITIZED" in os.environ, "sanitizers bring libraries that no package has")
class FreshRoot(Packages):
    """The Debian package, installed by dpkg into a root that holds what it depends on and nothing else, not even a shell."""

    def fresh_root(self):
        if missing := [tool for tool in ("dpkg", "unshare", "chroot") if not shutil.which(tool, path="/usr/sbin:/usr/bin")]:
            self.skipTest(f"{' and '.join(missing)} not found")
        root = self.work / "root"
        database = root / "var/lib/dpkg"
        for folder in (database / "info", database / "updates", root / "proc", root / "tmp", root / "work"):
            folder.mkdir(parents=True)
        for name in ("lib", "lib64"):
            (root / "usr" / name).mkdir(parents=True)
            (root / name).symlink_to(f"usr/{name}")
        dependencies = ("libc6:amd64", "libgcc-s1:amd64")
        (database / "status").write_text(run("dpkg-query", "-s", *dependencies))
        for path in map(pathlib.Path, run("dpkg", "-L", *dependencies).split("\n")):
            if path.parent.name and (path.is_symlink() or path.is_file()):
                target = root / path.relative_to("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target, follow_symlinks=False)
        # The namespaces also make an ordinary user root, where the system lets him have them.
        self.as_root = ["unshare", *(["--map-root-user"] if os.geteuid() != 0 else []), "--mount", "--pid", "--fork", f"--mount-proc={root / 'proc'}"]
        trial = subprocess.run([*self.as_root, "true"], capture_output=True, text=True, timeout=60)
        if trial.returncode != 0:
            self.skipTest(f"this user can have no root of its own: {trial.stderr.strip()}")
        return root

    def test_the_debian_package_in_a_fresh_root(self):
        root = self.fresh_root()
        dpkg = [*self.as_root, "dpkg", f"--root={root}", "--force-not-root"]

        def files():
            return {path for path in root.rglob("*") if not path.is_dir() and root / "var/lib/dpkg" not in path.parents}

        before = files()
        run(*dpkg, "--install", self.package("deb", "aisp_*_amd64.deb"))
        self.assertIn("Status: install ok installed", run("dpkg-query", f"--root={root}", "-s", "aisp"))

        def aisp(*words):
            return run(*self.as_root, "chroot", root, "/usr/bin/aisp", *words, env={"HOME": "/work", "PATH": "/usr/sbin:/usr/bin"})

        self.assertTrue(aisp("--version").startswith("aisp "))
        self.assertIn("recorded", aisp("explain", "ch01:coalescing"))
        self.assertRegex(aisp("verify", "-t", "ch01:loop_order", "--artifacts-dir", "/work/artifacts"), r"ch01:loop_order +passed")
        shutil.rmtree(root / "work")
        (root / "work").mkdir()
        run(*dpkg, "--purge", "aisp")
        self.assertEqual(files(), before)


@unittest.skipIf("AISP_SANITIZED" in os.environ, "sanitizers bring libraries that no package has")
class Image(Packages):
    """The image of scripts/containers/Dockerfile, from this build's package instead of one that its first stage compiles for an hour."""

    BASE = os.environ.get("AISP_BASE_IMAGE", "debian:12")

    def buildah(self, *words, good=True):
        done = subprocess.run(["buildah", *map(str, words)], capture_output=True, text=True, timeout=300)
        if good and done.returncode != 0:
            raise AssertionError(f"buildah {words} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def setUp(self):
        super().setUp()
        if not shutil.which("buildah"):
            self.skipTest("buildah is not installed")
        if self.buildah("inspect", "--type", "image", self.BASE, good=False).returncode != 0:
            self.skipTest(f"there is no image {self.BASE} here: docs/install.md says how to make one, or AISP_BASE_IMAGE names another")

    def test_an_image_from_the_package(self):
        built = self.work / "built/aisp"
        (built / ".cuda/lib").mkdir(parents=True)
        (built / "packages").mkdir()
        shutil.move(self.package("deb", "aisp_*_amd64.deb"), built / "packages")
        name = f"localhost/aisp-test-{os.getpid()}"
        folder = SOURCE / "scripts/containers"
        self.buildah("build", "-f", folder / "Dockerfile", "--ignorefile", folder / "Dockerfile.dockerignore", "--isolation", "chroot",
                     "--build-arg", f"BASE_IMAGE={self.BASE}", "--build-context", f"build={built.parent}", "-t", name, SOURCE)
        self.addCleanup(self.buildah, "rmi", name)
        container = self.buildah("from", name).stdout.strip()
        self.addCleanup(self.buildah, "rm", container)

        def inside(*words):
            return self.buildah("run", "--isolation", "chroot", container, "--", *words).stdout

        self.assertEqual((inside("id", "-un"), inside("pwd")), ("aisp\n", "/artifacts\n"))
        self.assertTrue(inside("aisp", "--version").startswith("aisp "))
        self.assertRegex(inside("aisp", "verify", "-t", "ch01:loop_order", "--artifacts-dir", "/artifacts"), r"ch01:loop_order +passed")


class Script(Packages):
    def test_what_is_wrong_is_one_line(self):
        for arguments, words in ((["--only", "rpm"], "not 'rpm'"), (["--build", self.work], "build it first"), (["--bogus"], "unknown option")):
            done = subprocess.run([SOURCE / "scripts/package", *arguments], cwd=self.work, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
