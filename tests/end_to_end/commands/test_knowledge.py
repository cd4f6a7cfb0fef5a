# SPDX-License-Identifier: Apache-2.0
"""aisp specs and aisp estimate as a user meets them."""
import json
import unittest

from harness import EndToEnd
from schemas import mistakes

LLAMA = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
         "intermediate_size": 14336, "vocab_size": 128256}
SHAPE = ("--layers", "32", "--hidden", "4096", "--heads", "32", "--kv-heads", "8")


class Specs(EndToEnd):
    def test_table(self):
        finished = self.call("specs", "h200", "B200")
        self.assert_code(finished, 0)
        self.assertEqual([line.split()[0] for line in finished.out.splitlines()[:3]], ["GPU", "h200", "b200"])
        self.assertIn("206", finished.out.splitlines()[1])
        self.assertEqual(finished.out.splitlines()[1].split()[1:3], ["132", "60"], "SMs and MiB of L2")
        self.assertEqual(finished.out.splitlines()[2].split()[1], "148?", "known from others who quote what CUDA reports")
        self.assertEqual(self.call("specs", "b300").out.splitlines()[1].split()[1:3], ["-", "-"], "nobody says how much of its chip is in use")

    def test_sources(self):
        lines = self.call("specs", "h200", "--source").out.splitlines()
        self.assertTrue(any("bf16_flop_s" in line and "half of the rate with sparsity" in line and "https://" in line for line in lines))

    def test_doubtful_figures_are_marked_with_the_reason(self):
        head, b300, h200, *legend = self.call("specs", "b300", "h200").out.splitlines()
        for figure in ("270?", "7700?", "1.25?", "150?", "13125?", "292?", "584?"):
            self.assertIn(figure, b300.split())
        self.assertIn("2250", b300.split(), "which nothing contradicts")
        self.assertNotIn("?", head + h200)
        self.assertIn('"?": doubtful', " ".join(legend))

        lines = {line.split()[1]: line for line in self.call("specs", "b300", "--source").out.splitlines()}
        self.assertRegex(lines["fp4_flop_s"], r"NVIDIA HGX specifications.* doubtful: the data sheet is quoted with 14000 TFLOP/s$")
        self.assertRegex(lines["bandwidth_bytes_s"], r" doubtful: 8 TB/s is quoted as well$")
        self.assertNotIn("doubtful", lines["bf16_flop_s"])

        sources = json.loads(self.call("specs", "b300", "--json").out)["gpus"][0]["sources"]
        doubts = {name: source["doubt"] for name, source in sources.items()}
        self.assertEqual({name for name in doubts if doubts[name]}, {name for name in lines if "doubtful" in lines[name]})
        for name in doubts:
            self.assertTrue(lines[name].endswith(doubts[name]), name)

    def test_unknown(self):
        finished = self.call("specs", "h20")
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "unknown GPU 'h20'", "h200")


class Estimate(EndToEnd):
    def estimate(self, *arguments):
        finished = self.call("estimate", *arguments, "--json")
        self.assert_code(finished, 0)
        return json.loads(finished.out)

    def refused(self, *arguments, words):
        finished = self.call("estimate", *arguments)
        self.assert_code(finished, 2)
        self.assertEqual(finished.out, "")
        self.assert_one_error_line(finished, *words)

    def test_text(self):
        finished = self.call("estimate", "--model", "llama-3-405b", "--gpu", "a100", "--gpus", "8")
        self.assert_code(finished, 0)
        self.assertIn("does not fit", finished.out)
        self.assertIn("it takes 11 GPUs", finished.out)
        self.assertIn("note: it does not fit", finished.err)
        text = self.call("estimate", "--model", "llama-3-8b", "--gpu", "h100", "--prompt", "1024").out
        self.assertIn("1024 x 4096 x 4096: 682.6667 FLOP/byte (about 680)", text)
        self.assertIn("ridge 295 FLOP/byte", text)
        self.assertIn("weights alone: 4.79 ms", text)

    def test_three_ways_to_say_a_model(self):
        (self.work / "config.json").write_text(json.dumps(LLAMA))
        known = self.estimate("--model", "llama-3-8b")
        for arguments in (("--config", "config.json"), (*SHAPE, "--ffn", "14336", "--vocab", "128256"), (*SHAPE, "--parameters", "8030261248")):
            other = self.estimate(*arguments)
            self.assertEqual({**other, "model": 0}, {**known, "model": 0})

    def test_405_billion_weigh_810_gigabytes(self):
        shape = ("--parameters", "405e9", "--layers", "126", "--hidden", "16384", "--heads", "128", "--kv-heads", "8")
        for gpu, memory_bytes, fits in (("h200", 8 * 150.1e9, True), ("a100", 640e9, False)):
            memory = self.estimate(*shape, "--gpu", gpu, "--gpus", "8")["memory"]
            self.assertEqual((memory["weights_bytes"], memory["memory_bytes"], memory["fits"]), (810e9, memory_bytes, fits))

    def test_int4_training_and_a_ranking(self):
        memory = self.estimate("--model", "llama-3-70b", "--gpu", "a100", "--dtype", "int4")["memory"]
        self.assertAlmostEqual(memory["weights_bytes"] / 1e9, 35, delta=0.4)
        speed = ("--model", "llama-3-8b", "--gpu", "h100", "--gpus", "8", "--tokens-per-second", "60000")
        self.assertAlmostEqual(self.estimate(*speed, "--training")["mfu"], 3 * self.estimate(*speed)["mfu"])
        self.assertIn("model FLOP utilization of training: 36.5 %", self.call("estimate", *speed, "--training").out)
        self.refused("--model", "llama-3-8b", "--training", words=("--tokens-per-second",))
        self.refused("--model", "llama-3-8b", "--gpu", "all", "--tokens-per-second", "9", words=("--gpu",))
        ranked = self.estimate("--model", "llama-3-70b", "--gpu", "all")
        self.assertEqual(mistakes(ranked, "estimate"), [])
        speeds = [gpu["tokens_per_second_per_gpu"] for gpu in ranked["ranking"]]
        self.assertEqual(speeds, sorted(speeds, reverse=True))
        self.assertEqual({gpu["gpu"]: gpu["gpus"] for gpu in ranked["ranking"]}["h100-sxm"], 2)
        text = self.call("estimate", "--model", "llama-3-70b", "--gpu", "all").out
        self.assertEqual([line.split()[0] for line in text.splitlines()[3:3 + len(speeds)]], [gpu["gpu"] for gpu in ranked["ranking"]])

    def test_doubt_of_a_data_sheet_reaches_the_estimate(self):
        model = ("--model", "llama-3-8b")
        text = self.call("estimate", *model, "--gpu", "b200").out
        for words in ("7.70 TB/s? a GPU", "ridge 292 FLOP/byte?", "memory bound, at least 2.23 ms?, at most 449 tokens/s?",
                      "2.25 PFLOP/s bf16", "compute bound, at least 66.3 ms\n", "163 GB? left"):
            self.assertIn(words, text)
        self.assertTrue(text.endswith('\n"?": rests on a doubtful figure of the data sheet\n  memory_bytes: 192 GB is quoted as well\n'
                                      "  bandwidth_bytes_s: 8 TB/s is quoted as well\n"), text)
        doubted = self.call("estimate", *model, "--gpu", "gb300", "--tokens-per-second", "9").out
        self.assertIn("of 279 GB?", doubted)
        self.assertRegex(doubted, r"model FLOP utilization: [\d.]+ %\?")
        self.assertIn("  memory_bytes, bandwidth_bytes_s, bf16_flop_s: known from others", doubted)
        self.assertNotIn("?", self.call("estimate", *model, "--gpu", "h200", "--tokens-per-second", "9").out)

        doubts = {gpu: self.estimate(*model, "--gpu", gpu)["doubts"] for gpu in ("b200", "h200")}
        self.assertEqual(doubts, {"b200": {"memory_bytes": "192 GB is quoted as well", "bandwidth_bytes_s": "8 TB/s is quoted as well"}, "h200": {}})
        self.assertEqual(mistakes(self.estimate(*model, "--gpu", "gb300"), "estimate"), [])

    def test_doubt_of_a_data_sheet_reaches_the_ranking(self):
        sources = {gpu["key"]: gpu["sources"] for gpu in json.loads(self.call("specs", "--json").out)["gpus"]}
        used = ("memory_bytes", "bandwidth_bytes_s", "bf16_flop_s", "tdp_w")
        doubted = {key: {name: source[name]["doubt"] for name in used if source[name]["doubt"]} for key, source in sources.items()}
        ranked = self.estimate("--model", "llama-3-8b", "--gpu", "all")["ranking"]
        self.assertEqual({gpu["gpu"]: gpu["doubts"] for gpu in ranked}, doubted)
        table, _, reasons = self.call("estimate", "--model", "llama-3-8b", "--gpu", "all").out.partition('"?": rests on')
        rows = {line.split()[0]: line for line in table.splitlines()[3:3 + len(ranked)]}
        for gpu, why in doubted.items():
            self.assertEqual("?" in rows[gpu], bool(why), rows[gpu])
            for name, reason in why.items():
                self.assertTrue(any(line.startswith(f"  {gpu} ") and name in line and line.endswith(reason) for line in reasons.splitlines()))
        self.assertNotIn("  h200 ", reasons)

    def test_bad_input(self):
        self.refused(words=("which model?",))
        self.refused("--model", "llama-3-8b", "--layers", "3", words=("exclude each other",))
        self.refused("--model", "lama-3-8b", words=("nearest are llama-3-8b",))
        self.refused("--model", "llama-3-8b", "--gpu", "h2000", words=("h200",))
        self.refused("--model", "llama-3-8b", "--dtype", "bf17", words=("unknown data type", "bf16"))
        for flag, value in (("--gpus", "0"), ("--batch", "-1"), ("--context", "1e99"), ("--batch", "nan"), ("--prompt", "9000"),
                            ("--tokens-per-second", "0")):
            self.refused("--model", "llama-3-8b", flag, value, words=(flag,))
        self.refused("--parameters", "1e9", "--layers", "2", "--hidden", "64", "--heads", "0", words=("heads",))
        self.refused("--parameters", "1e9", "--layers", "2", "--hidden", "64", "--heads", "4", "--kv-heads", "3", words=("do not divide",))
        self.refused("--parameters", "x", *SHAPE, words=("--parameters",))
        self.refused(*SHAPE, words=("--parameters",))

    def test_memory_is_what_programs_find(self):
        memory = self.estimate("--model", "llama-3-70b", "--gpu", "h200")["memory"]
        self.assertEqual((memory["memory_bytes"], memory["fits"], memory["gpus_needed"]), (150.1e9, True, 1), "144 GB")
        self.assertEqual(self.estimate("--model", "llama-3-70b", "--gpu", "h100", "--gpus", "3")["memory"]["memory_bytes"], 3 * 85.0e9)

    def test_what_servers_do_not_divide_is_said(self):
        finished = self.call("estimate", "--model", "llama-3-70b", "--gpu", "h100", "--gpus", "3")
        self.assertIn("note: 64 heads do not divide by 3 GPUs", finished.err)
        finished = self.call("estimate", "--model", "deepseek-v3", "--dtype", "fp8", "--gpu", "h200", "--gpus", "8", "--context", "131072")
        self.assertIn("at most 57 sequences of 131072 positions", finished.out)
        self.assertIn("each GPU keeps all of it, which leaves room for 7 of these sequences at most", finished.err)

    def test_gpus_by_the_name_that_nvidia_smi_prints(self):
        for name, key in (("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100-sxm"), ("NVIDIA H100 PCIe", "h100-pcie"),
                          ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA B200", "b200")):
            self.assertEqual(self.estimate("--model", "llama-3-8b", "--gpu", name)["question"]["gpu"], key)
        for name in ("NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GH200 480GB", "l4", "rtx-5090", "gh200"):
            self.refused("--model", "llama-3-8b", "--gpu", name, words=(f"unknown GPU '{name}'", "--memory, --bandwidth and --flops"))

    def test_a_gpu_of_ones_own(self):
        model, l4 = ("--model", "llama-3-8b"), ("--memory", "24e9", "--bandwidth", "300e9", "--flops", "121e12")
        own = self.estimate(*model, *l4)
        self.assertEqual(mistakes(own, "estimate"), [])
        self.assertEqual((own["question"]["gpu"], own["memory"]["memory_bytes"], own["doubts"]), ("own", 24e9, {}))
        self.assertEqual((own["roofline"]["flop_s"], own["roofline"]["bandwidth_bytes_s"]), (121e12, 300e9))
        self.assertIn("GPU of your own", self.call("estimate", *model, *l4).out)
        nvl = self.estimate(*model, "--gpu", "h100-pcie", "--memory", "94e9", "--bandwidth", "3.9e12")
        self.assertEqual((nvl["memory"]["memory_bytes"], nvl["roofline"]["flop_s"]), (94e9, 756.5e12))
        self.refused(*model, "--memory", "24e9", words=("--bandwidth and --flops", "--gpu"))
        self.refused(*model, "--gpu", "all", "--memory", "24e9", words=("--gpu all",))
        for figure in ("0", "-1", "nan", "24", "1e99"):
            self.refused(*model, "--gpu", "h200", "--memory", figure, words=("--memory",))

    def test_broken_configs(self):
        broken = {"empty": b"", "binary": bytes(range(256)), "deep": b"[" * 100_000, "cut": b'{"hidden_size": 40', "array": b"[]",
                  "words": json.dumps({**LLAMA, "hidden_size": "4096"}).encode(), "huge": json.dumps({**LLAMA, "vocab_size": 10**30}).encode(),
                  "overflow": b'{"num_hidden_layers": 1e999}', "other": json.dumps({**LLAMA, "model_type": "new"}).encode(),
                  "zero": json.dumps({**LLAMA, "num_attention_heads": 0}).encode()}
        for name, content in broken.items():
            with self.subTest(name):
                (self.work / name).write_bytes(content)
                self.refused("--config", name, words=("aisp: error:",))
        self.refused("--config", "missing.json", words=("missing.json",))


if __name__ == "__main__":
    unittest.main()
