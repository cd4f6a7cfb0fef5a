# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile and the Kubernetes manifests: well formed, and every aisp command in them is one that this aisp accepts."""
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

import yaml
from machine import SOURCE

AISP = os.environ.get("AISP", str(SOURCE / "build/dev/aisp"))
FOLDER = SOURCE / "scripts/containers"
DOCKERFILE = FOLDER / "Dockerfile"
MANIFESTS = sorted(FOLDER.glob("kubernetes-*.yaml"))
INSTRUCTIONS = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD", "LABEL", "EXPOSE", "VOLUME", "SHELL", "HEALTHCHECK"}
# Names allowed for an image of this project: no host, no path, at most a tag.
SHORT_IMAGE = re.compile(r"[a-z0-9][a-z0-9._-]*(:[A-Za-z0-9._-]+)?\Z")


def instructions(text):
    """(instruction, rest) of each, continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [tuple(line.split(None, 1)) if " " in line else (line, "") for line in joined.splitlines()]


def stages(text):
    """The instructions from each FROM to the next."""
    found = []
    for name, rest in instructions(text):
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append((name, rest))
    return found


def aisp_commands(text):
    """Commands of aisp in comments: after the image's name in "docker run", or where one starts."""
    for line in re.findall(r"^\s*#\s+(docker run .*|\S*aisp .*)$", text, re.MULTILINE):
        words = shlex.split(line)
        if words[0] == "docker":
            words = words[words.index("aisp"):]
        yield words[1:]


class Accepted(unittest.TestCase):
    def accepts(self, arguments):
        """--dry-run reads and resolves all options and targets, and writes nothing."""
        self.assertIn(arguments[0], ("run",), f"say in this test how 'aisp {arguments[0]}' is tried out")
        with tempfile.TemporaryDirectory() as work:
            result = subprocess.run([AISP, *arguments, "--dry-run"], cwd=work, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(result.returncode, 0, f"aisp {arguments}\n{result.stderr}")
        self.assertIn("ch03:docker", result.stdout)


class Dockerfile(Accepted):
    def setUp(self):
        self.text = DOCKERFILE.read_text()
        self.all = instructions(self.text)
        self.stages = stages(self.text)

    def values(self, wanted, stage=-1):
        return [rest for name, rest in self.stages[stage] if name == wanted]

    def test_instructions_are_known_and_two_stages(self):
        self.assertEqual([name for name, _ in self.all if name not in INSTRUCTIONS], [])
        self.assertEqual(len(self.stages), 2)
        self.assertTrue(all(rest for _, rest in self.all))

    def test_images_are_short_names_and_stages_exist(self):
        defaults = dict(rest.split("=", 1) for name, rest in self.all if name == "ARG")
        known = set()
        for stage in self.stages:
            image, *alias = stage[0][1].split()
            image = re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], image)
            self.assertTrue(SHORT_IMAGE.match(image), image)
            for rest in (rest for name, rest in stage if name == "COPY"):
                source = re.match(r"--from=(\S+)", rest)
                if source:
                    self.assertIn(source[1], known)
            known.update(alias[1:])

    def test_what_is_copied_from_the_tree_exists_and_is_not_ignored(self):
        ignored = (FOLDER / "Dockerfile.dockerignore").read_text().split()
        for stage in self.stages:
            for rest in (rest for name, rest in stage if name == "COPY" and not rest.startswith("--from")):
                *sources, _ = rest.split()
                for source in sources:
                    self.assertTrue((SOURCE / source).exists(), source)
                    self.assertNotIn(source.split("/")[0], ignored)

    def test_what_is_copied_from_the_build_is_what_setup_makes(self):
        command = next(rest for rest in self.values("RUN", 0) if "setup.sh" in rest)
        self.assertEqual(self.values("WORKDIR", 0), ["/aisp"])
        command = re.sub(r"\$\{ARCHITECTURES.*\}", "", command)
        planned = subprocess.run([*shlex.split(command), "--dry-run"], cwd=SOURCE, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(planned.returncode, 0, planned.stderr)
        self.assertIn(f"CUDA: {SOURCE}/.cuda\n", planned.stdout)
        self.assertIn("scripts/package --build build/packages --out packages", planned.stdout)
        copied = [rest.split()[1] for rest in self.values("COPY") if rest.startswith("--from")]
        self.assertEqual(copied, ["/aisp/.cuda/lib"])
        mounted = next(rest for rest in self.values("RUN") if rest.startswith("--mount"))
        self.assertIn("from=build,source=/aisp/packages,", mounted)
        self.assertIn("dpkg -i /packages/aisp_*.deb", mounted)

    def test_variables_of_the_environment_are_read_by_aisp(self):
        sources = "\n".join(path.read_text() for folder in ("src", "include") for path in (SOURCE / folder).rglob("*.?pp"))
        for name in re.findall(r"(\w+)=", " ".join(self.values("ENV"))):
            if not name.startswith("NVIDIA_"):
                self.assertIn(f'"{name}"', sources)

    def test_runs_aisp_and_not_as_root(self):
        self.assertEqual(self.values("ENTRYPOINT"), ['["aisp"]'])
        self.assertNotIn(self.values("USER")[-1], ("root", "0"))
        self.accepts(json.loads(self.values("CMD")[-1]))

    def test_commands_in_comments(self):
        commands = list(aisp_commands(self.text))
        self.assertTrue(commands)
        for command in commands:
            self.accepts(command)

    @unittest.skipUnless(shutil.which("hadolint"), "hadolint is not installed")
    def test_hadolint(self):
        result = subprocess.run(["hadolint", str(DOCKERFILE)], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(result.returncode, 0, result.stdout)


def documents():
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            yield path.name, document


def pods():
    """(file, pod specification, kind of what makes the pod)"""
    for name, document in documents():
        if document["kind"] == "Pod":
            yield name, document["spec"], "Pod"
        elif document["kind"] == "Job":
            yield name, document["spec"]["template"]["spec"], "Job"


class Manifests(Accepted):
    VERSIONS = {"Pod": "v1", "Job": "batch/v1", "PersistentVolumeClaim": "v1", "Service": "v1"}

    def test_documents_have_what_every_object_has(self):
        self.assertEqual(len(MANIFESTS), 5)
        for name, document in documents():
            with self.subTest(name, kind=document["kind"]):
                self.assertEqual(sorted(document), ["apiVersion", "kind", "metadata", "spec"])
                self.assertEqual(document["apiVersion"], self.VERSIONS[document["kind"]])
                self.assertRegex(document["metadata"]["name"], r"\A[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")

    def test_requests_equal_limits_and_each_pod_has_one_gpu_or_slice(self):
        for name, pod, _ in pods():
            for container in pod["containers"]:
                with self.subTest(name):
                    resources = container["resources"]
                    self.assertEqual(resources["requests"], resources["limits"])
                    self.assertLessEqual({"cpu", "memory"}, set(resources["limits"]))
                    devices = {key: count for key, count in resources["limits"].items() if key.startswith("nvidia.com/")}
                    self.assertEqual(list(devices.values()), [1])
                    self.assertRegex(next(iter(devices)), r"\Anvidia\.com/(gpu|mig-\dg\.\d+gb)\Z")

    def test_kinds_of_devices(self):
        kinds = {name: next(key for key in pod["containers"][0]["resources"]["limits"] if key.startswith("nvidia.com/")) for name, pod, _ in pods()}
        self.assertEqual(kinds["kubernetes-job.yaml"], "nvidia.com/gpu")
        self.assertTrue(kinds["kubernetes-mig-pod.yaml"].startswith("nvidia.com/mig-"))
        self.assertIn(kinds["kubernetes-mig-pod.yaml"].split("mig-")[1], (FOLDER / "kubernetes-mig-pod.yaml").read_text().split("apiVersion")[0])

    def test_pods_end_once_and_without_privileges(self):
        for name, pod, kind in pods():
            with self.subTest(name):
                self.assertEqual(pod["restartPolicy"], "Never", f"{kind}: a suite that ends must stay ended")
                self.assertTrue(pod["securityContext"]["runAsNonRoot"])
                for container in pod["containers"]:
                    self.assertFalse(container["securityContext"]["allowPrivilegeEscalation"])

    def test_job_has_more_time_than_the_suite(self):
        for name, document in documents():
            if document["kind"] != "Job":
                continue
            with self.subTest(name):
                job = document["spec"]
                arguments = job["template"]["spec"]["containers"][0]["args"]
                hours = int(arguments[arguments.index("--suite-timeout") + 1].rstrip("h"))
                self.assertGreater(job["activeDeadlineSeconds"], 3600 * hours)
                # Shards are tried by themselves; the pods of one run end together.
                self.assertEqual(job.get("backoffLimitPerIndex", job.get("backoffLimit")), 0)

    def test_mounts_have_their_volumes_and_claims(self):
        claims = {document["metadata"]["name"] for _, document in documents() if document["kind"] == "PersistentVolumeClaim"}
        for name, pod, _ in pods():
            with self.subTest(name):
                volumes = {volume["name"]: volume for volume in pod["volumes"]}
                mounts = {mount["mountPath"]: mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
                self.assertEqual(sorted(mounts.values()), sorted(volumes))
                self.assertEqual(volumes[mounts["/dev/shm"]]["emptyDir"]["medium"], "Memory")
                claim = volumes[mounts["/artifacts"]].get("persistentVolumeClaim")
                self.assertTrue(claim is None or claim["claimName"] in claims)

    def test_images_are_short_names_and_arguments_are_aisps(self):
        for name, pod, _ in pods():
            for container in pod["containers"]:
                with self.subTest(name):
                    self.assertTrue(SHORT_IMAGE.match(container["image"]))
                    self.assertNotIn("command", container, "the image's entry point is aisp")
                    self.assertTrue(all(isinstance(word, str) for word in container["args"]), "YAML took a word for something else")
                    # Kubernetes puts in the values of the container's variables; test_cluster.py tries each index.
                    arguments = [word.replace("$(JOB_COMPLETION_INDEX)", "0") for word in container["args"]]
                    self.accepts(arguments)
                    self.assertEqual(arguments[arguments.index("--artifacts-dir") + 1], "/artifacts")

    def test_topology_pod_and_kubelet_agree(self):
        limits = next(pod for name, pod, _ in pods() if "topology" in name)["containers"][0]["resources"]["limits"]
        self.assertIsInstance(limits["cpu"], int, "exclusive CPUs are whole ones")
        kubelet = yaml.safe_load((FOLDER / "kubelet-config.yaml").read_text())
        self.assertEqual((kubelet["apiVersion"], kubelet["kind"]), ("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"))
        self.assertEqual((kubelet["cpuManagerPolicy"], kubelet["topologyManagerPolicy"]), ("static", "single-numa-node"))
        self.assertTrue(kubelet["reservedSystemCPUs"], "the static policy needs reserved CPUs")
        self.assertTrue(all(isinstance(value, str) for value in kubelet["cpuManagerPolicyOptions"].values()), "options are strings")
        # As many pages as the script reserves.
        pages = int(re.search(r"\bhuge_pages=(\d+)", (SOURCE / "scripts/system-tuning.sh").read_text())[1])
        self.assertEqual(limits["hugepages-2Mi"], f"{2 * pages}Mi")

    @unittest.skipUnless(shutil.which("kubeconform"), "kubeconform is not installed")
    def test_kubeconform(self):
        result = subprocess.run(["kubeconform", "-strict", *map(str, MANIFESTS)], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


class Comments(Accepted):
    def test_scripts_named_in_comments_accept_those_options(self):
        """Commands in comments exist, with the options they have there."""
        found = 0
        for path in [DOCKERFILE, *FOLDER.glob("*.yaml"), *(SOURCE / "scripts").glob("*.sh")]:
            for script, rest in re.findall(r"(scripts/[\w-]+\.sh)((?: +--?[a-z-]+)*)", path.read_text()):
                usage = subprocess.run([str(SOURCE / script), "--help"], capture_output=True, text=True, timeout=10, check=False).stdout
                for option in rest.split():
                    self.assertIn(option, usage, f"{path.name}: {script}")
                found += 1
        self.assertGreater(found, 5)


if __name__ == "__main__":
    unittest.main()
