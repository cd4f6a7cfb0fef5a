// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "suite/records/records.hpp"
#include "suite/settings/configuration.hpp"
#include "suite/suite.hpp"

namespace aisp::cli {
namespace {

using base::Exit;

struct MergeOptions {
  std::vector<std::string> runs;
  std::string run_id;
  std::string artifacts_dir = "artifacts";
};

Exit merge(const MergeOptions& options, const std::vector<std::string>& command_line) {
  suite::Configuration named;
  suite::apply(named, "run-id", {options.run_id}, "flag");
  std::vector<std::filesystem::path> folders;
  for (const std::string& run : options.runs) folders.push_back(suite::find_run(options.artifacts_dir, run));
  suite::MergedRun merged = suite::merge_shards(folders);
  const suite::RunFolder folder = suite::RunFolder::create(options.artifacts_dir, named.run_id, base::join(command_line, " "));
  merged.suite.run_id = merged.manifest.run_id = folder.id();
  merged.manifest.command_line = command_line;
  suite::write_merged(merged, folder);
  for (const evidence::RunRecord& shard : merged.shards)
    for (const std::string& warning : shard.warnings) note("aisp: warning: " + warning);
  show(fmt::format("{} of {}: {}\n", base::plural(merged.suite.pairs.size(), "result"),
                   base::plural(merged.shards.size(), "shard"), folder.path().string()));
  if (!merged.missing.empty())
    throw base::Error{Exit::failed, fmt::format("{} without a result, because a shard ended early: {}; continue it with aisp run "
                                                "--resume and merge again",
                                                base::plural(merged.missing.size(), "pair"), base::join(merged.missing, ", "))};
  return suite::exit_status(merged.suite);
}

}  // namespace

void add_merge(CLI::App& app, Action& action, const std::vector<std::string>& command_line) {
  auto options = std::make_shared<MergeOptions>();
  CLI::App* command = app.add_subcommand("merge", "make one run of the shards that aisp run --shard measured");
  command->add_option("RUN", options->runs, "the runs of all shards, by name or folder")->type_name("")->required();
  command->add_option("--run-id", options->run_id, "name of the new run's folder")->type_name("NAME")->required();
  command->add_option("--artifacts-dir", options->artifacts_dir, "where that is made, and where runs are looked for [artifacts]")
      ->type_name("DIR");
  command->footer("Exit status: as if it had been one run, 1 when a pair failed or has no result; 2 for runs that do not fit.");
  command->callback(
      [options, command_line, &action] { action = [options, command_line] { return merge(*options, command_line); }; });
}

}  // namespace aisp::cli
