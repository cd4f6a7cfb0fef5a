// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <regex>

#include "base/system/files.hpp"
#include "base/system/lock.hpp"
#include "base/system/places.hpp"
#include "base/system/terminal.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "suite/records/run_folder.hpp"

namespace aisp::cli {
namespace {

namespace fs = std::filesystem;

// A link is never followed, even to a folder of ours: what lies elsewhere was put there on purpose.
bool is_real_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() == fs::file_type::directory;
}

std::vector<fs::path> run_folders(const fs::path& artifacts) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator{artifacts, error})
    if (is_real_folder(entry.path()) && suite::is_run_folder(entry.path())) folders.push_back(entry.path());
  if (error && error != std::errc::no_such_file_or_directory)
    throw base::Error{base::Exit::unfit, fmt::format("cannot read {}: {}", artifacts.string(), error.message())};
  std::sort(folders.begin(), folders.end());
  return folders;
}

std::uintmax_t bytes_below(const fs::path& folder) {
  std::uintmax_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it{folder, error}, end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored) && !it->is_symlink(ignored)) bytes += it->file_size(ignored);
  }
  return bytes;
}

bool is_cached(const fs::path& cache, const fs::path& file) {
  static const std::regex form{base::cached_files};
  const fs::path below = file.lexically_relative(cache);
  const bool half_written = below.has_parent_path() && base::is_temporary_name(file.filename().string());
  std::error_code ignored;
  return (half_written || std::regex_match(below.string(), form)) &&
         fs::symlink_status(file, ignored).type() == fs::file_type::regular;
}

struct CacheContent {
  std::vector<fs::path> files, folders;  // aisp's; of the folders the inner ones first
  std::vector<std::string> others;       // the names of what is not, as far as one folder down
};

CacheContent content_of(const fs::path& cache) {
  CacheContent content;
  const auto other = [&](const fs::path& path) { content.others.push_back(path.lexically_relative(cache).string()); };
  for (const auto& part : fs::directory_iterator{cache}) {
    const bool ours = is_real_folder(part.path()) && (part.path().filename() == "peak" || part.path().filename() == "kernels");
    if (!ours) {
      other(part.path());
      continue;
    }
    for (const auto& file : fs::directory_iterator{part.path()})
      if (is_cached(cache, file.path())) content.files.push_back(file.path());
      else other(file.path());
    content.folders.push_back(part.path());
  }
  content.folders.push_back(cache);
  std::sort(content.others.begin(), content.others.end());
  return content;
}

class Cleaner {
 public:
  explicit Cleaner(bool dry_run) : dry_run_{dry_run} {}

  void remove(const fs::path& folder) {
    const std::uintmax_t bytes = bytes_below(folder);
    if (!dry_run_) base::remove_tree(folder);
    count(folder, bytes);
  }

  void remove_run(const fs::path& folder) {
    if (!suite::was_written_by_aisp(folder))
      say(fmt::format("kept {}: its results.jsonl or manifest.json is not of aisp's making", folder.string()));
    else if (suite::is_in_use(folder))
      say(fmt::format("kept {}: in use by {}", folder.string(), base::FileLock::holder(suite::lock_file(folder))));
    else remove(folder);
  }

  // Removes what aisp keeps there, and folders that are empty then.
  void remove_cache(const fs::path& cache) {
    const CacheContent content = content_of(cache);
    std::uintmax_t bytes = 0;
    for (const fs::path& file : content.files) {
      bytes += fs::file_size(file);
      if (!dry_run_) base::remove_tree(file);
    }
    for (const fs::path& folder : content.folders) {
      std::error_code not_empty;
      if (!dry_run_) fs::remove(folder, not_empty);
    }
    if (!content.others.empty()) {
      constexpr std::size_t most = 5;
      std::vector<std::string> names = content.others;
      if (names.size() > most) names.resize(most);
      say(fmt::format("kept what is not of aisp's making in {}: {}{}", cache.string(), base::join(names, ", "),
                      names.size() < content.others.size() ? ", ..." : ""));
      if (content.files.empty()) return;
    }
    count(cache, bytes);
  }

  // Reports a folder's error and goes on with the next.
  void attempt(const fs::path& folder, void (Cleaner::*act)(const fs::path&)) try {
    (this->*act)(folder);
  } catch (const std::exception& error) {
    note(fmt::format("aisp: error: {} is not removed: {}", folder.string(), error.what()));
    ++refused_;
  }

  base::Exit finish() const {
    if (count_ == 0) say(refused_ == 0 ? "nothing to remove" : "nothing was removed");
    else
      say(fmt::format("{} {}, {}", dry_run_ ? "would remove" : "removed", base::plural(count_, "folder"),
                      base::human_bytes(static_cast<double>(bytes_))));
    return refused_ == 0 ? base::Exit::good : base::Exit::unfit;
  }

 private:
  void count(const fs::path& folder, std::uintmax_t bytes) {
    say(fmt::format("{} {} ({})", dry_run_ ? "would remove" : "removed", folder.string(),
                    base::human_bytes(static_cast<double>(bytes))));
    bytes_ += bytes;
    ++count_;
  }
  // Names of folders and what stands in their locks may hold anything.
  static void say(const std::string& line) { show(base::on_screen(line) + '\n'); }

  bool dry_run_;
  std::size_t count_ = 0, refused_ = 0;
  std::uintmax_t bytes_ = 0;
};

}  // namespace

void add_clean(CLI::App& app, Action& action) {
  struct CleanOptions {
    std::string artifacts_dir = "artifacts";
    bool dry_run = false;
    bool keep_cache = false;
  };
  auto options = std::make_shared<CleanOptions>();
  CLI::App* command = app.add_subcommand("clean", "remove the folders of earlier runs and the caches, and nothing else");
  command->add_option("--artifacts-dir", options->artifacts_dir, "where the runs are [artifacts]")->type_name("DIR");
  command->add_flag("--dry-run", options->dry_run, "say what would be removed");
  command->add_flag("--keep-cache", options->keep_cache, "leave the cache alone");
  command->callback([options, &action] {
    action = [options] {
      Cleaner cleaner{options->dry_run};
      for (const fs::path& folder : run_folders(options->artifacts_dir)) cleaner.attempt(folder, &Cleaner::remove_run);
      if (const fs::path cache = base::cache_folder(); !options->keep_cache && !cache.empty() && is_real_folder(cache))
        cleaner.attempt(cache, &Cleaner::remove_cache);
      return cleaner.finish();
    };
  });
}

}  // namespace aisp::cli
