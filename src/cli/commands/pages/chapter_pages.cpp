// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/pages/chapter_pages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include "base/system/files.hpp"
#include "base/text.hpp"
#include "cli/output.hpp"
#include "cli/recorded.hpp"
#include "report/markdown/chapter_table.hpp"
#include "report/markdown/marked_tables.hpp"
#include "report/markdown/quoted_figures.hpp"
#include "report/pictures/chapter_pictures.hpp"
#include "suite/selection/select.hpp"

namespace aisp::cli {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::Exit;
using report::KnownPair;

struct Readme {
  std::string chapter;  // empty: that of the source tree, which has figures but neither table nor pictures of its own
  fs::path path;
};

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// A folder of pairs has a README with a place for its table, or should have.
bool is_chapter(const std::string& name, const fs::path& readme, const std::vector<KnownPair>& known) {
  return std::ranges::find(known, name, &KnownPair::chapter) != known.end() ||
         base::read_file(readme).find(report::table_begin) != std::string::npos;
}

std::vector<Readme> readmes_in(const fs::path& folder, const std::vector<KnownPair>& known) {
  std::error_code error;
  std::vector<Readme> found;
  for (fs::directory_iterator entry{folder, error}; !error && entry != fs::directory_iterator{}; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const fs::path readme = entry->path() / "README.md";
    if (is_there(readme) && is_chapter(name, readme, known)) found.push_back({name, readme});
  }
  if (error)
    throw Error{Exit::usage,
                fmt::format("cannot read the chapters in {}: {}; run in the source tree or name them with --chapters-dir",
                            folder.string(), error.message())};
  const fs::path above = (folder / ".." / "README.md").lexically_normal();
  if (is_there(above)) found.push_back({"", above});
  std::sort(found.begin(), found.end(), [](const Readme& a, const Readme& b) { return a.chapter < b.chapter; });
  return found;
}

// A file of expectations outlives the pairs in it.
void note_unknown_pairs(const std::vector<evidence::Expectations>& all, const std::vector<KnownPair>& known) {
  for (const evidence::Expectations& expectations : all)
    for (const auto& [name, pair] : expectations.pairs) {
      const bool found = std::any_of(known.begin(), known.end(), [&, wanted = name](const KnownPair& k) {
        return k.chapter == expectations.chapter && k.name == wanted;
      });
      const auto left_out = [&, wanted = name](const pair::NotBuilt& p) {
        return p.chapter == expectations.chapter && p.name == wanted;
      };
      if (!found && std::ranges::none_of(pair::not_built(), left_out))
        note(fmt::format("aisp: {} has {}:{}, which this aisp has not; left out", expectations.hardware, expectations.chapter,
                         name));
    }
}

class Pages {
 public:
  explicit Pages(const ChapterPages& options)
      : options_{options},
        all_{read_recorded(options.expectations_dir)},
        sweeps_{evidence::read_all_sweeps(expectations_to_read(options.expectations_dir))},
        counted_{evidence::read_all_counted(expectations_to_read(options.expectations_dir))},
        known_{known_pairs()} {
    note_unknown_pairs(all_, known_);
  }

  // Those of which every pair is built: tables and pictures show all.
  std::vector<Readme> readmes() const {
    std::vector<Readme> all = readmes_in(options_.chapters_dir, known_);
    std::erase_if(all, [](const Readme& readme) {
      if (std::ranges::find(pair::not_built(), readme.chapter, &pair::NotBuilt::chapter) == pair::not_built().end()) return false;
      note(fmt::format("aisp: {} is left as it is: its pairs are not all built; {} builds them", readme.path.string(),
                       suite::build_command({readme.chapter})));
      return true;
    });
    return all;
  }

  void update_table(const Readme& readme) {
    guarded([&] {
      const std::string place = readme.path.string(), before = base::read_file(readme.path);
      std::string after = report::with_quoted_figures(before, all_, place);
      if (!readme.chapter.empty()) {
        const std::vector<KnownPair> pairs = pairs_of(readme.chapter);
        after = report::with_table(after, report::chapter_table(readme.chapter, pairs, all_), place);
        after = report::with_counted_tables(after, readme.chapter, pairs, counted_, place);
        after = report::with_swept_tables(after, readme.chapter, pairs, sweeps_, place);
      }
      write_or_report(readme.path, before, after, "its table or figures are", "--chapter-tables");
    });
  }

  void update_pictures(const Readme& readme) {
    if (readme.chapter.empty()) return;
    guarded([&] {
      const std::string place = readme.path.string();
      for (const report::PictureMark& mark : report::picture_marks(base::read_file(readme.path), place))
        guarded([&] { update_picture(readme, mark); });
    });
  }

  std::size_t wrong() const { return wrong_; }

 private:
  void update_picture(const Readme& readme, const report::PictureMark& mark) {
    const fs::path file = readme.path.parent_path() / mark.file;
    if (!mark.kind && !is_there(file)) throw Error{Exit::usage, file.string() + ": drawn by hand, and not there"};
    const std::string before = is_there(file) ? base::read_file(file) : "";
    const std::string after = !mark.kind ? report::with_quoted_figures(before, all_, file.string())
                                         : report::chapter_picture(mark, readme.chapter, pairs_of(readme.chapter),
                                                                   {all_, sweeps_, counted_}, readme.path.string());
    write_or_report(file, before, after, "it is", "--pictures");
  }

  std::vector<KnownPair> pairs_of(const std::string& chapter) const {
    std::vector<KnownPair> pairs;
    std::ranges::copy_if(known_, std::back_inserter(pairs), [&](const KnownPair& pair) { return pair.chapter == chapter; });
    return pairs;
  }

  struct LineDifference {
    std::size_t line;
    std::string is, should_be;  // from shortly before they part: tables are wide
  };

  static LineDifference first_difference(const std::string& before, const std::string& after) {
    constexpr std::size_t context = 20, most = 100;
    const std::vector<std::string> is = base::split(before, '\n'), wanted = base::split(after, '\n');
    std::size_t line = 0;
    while (line < std::min(is.size(), wanted.size()) && is[line] == wanted[line]) ++line;
    const std::string has = line < is.size() ? is[line] : "", should = line < wanted.size() ? wanted[line] : "";
    const auto parting = static_cast<std::size_t>(std::ranges::mismatch(has, should).in1 - has.begin());
    const std::size_t from = parting > context ? parting - context : 0;
    return {line + 1, base::one_line(has.substr(from), most), base::one_line(should.substr(from), most)};
  }

  // Writes what has changed or, with --check, says so.
  void write_or_report(const fs::path& file, const std::string& before, const std::string& after, const char* what,
                       const char* flag) {
    if (after == before) return;
    if (options_.check) {
      ++wrong_;
      const LineDifference first = first_difference(before, after);
      show(fmt::format("{}:{}: {} not what {} says; aisp report {} writes it\n  is         {}\n  should be  {}\n", file.string(),
                       first.line, what, expectations_to_read(options_.expectations_dir), flag, first.is, first.should_be));
      return;
    }
    base::write_atomically(file, after);
    show(fmt::format("{}: written\n", file.string()));
  }

  // Runs `action` and reports its error, so that the next page is still made.
  template <class Action>
  void guarded(Action action) {
    try {
      action();
    } catch (const Error& error) {
      ++wrong_;
      if (options_.check) show(fmt::format("{}\n", error.what()));
      else note(fmt::format("aisp: error: {}", error.what()));
    }
  }

  const ChapterPages& options_;
  std::vector<evidence::Expectations> all_;
  std::vector<evidence::Sweep> sweeps_;
  std::vector<evidence::Counted> counted_;
  std::vector<KnownPair> known_;
  std::size_t wrong_ = 0;
};

}  // namespace

Exit write_chapter_pages(const ChapterPages& options) {
  Pages pages{options};
  const std::vector<Readme> readmes = pages.readmes();
  for (const Readme& readme : readmes) {
    if (options.tables) pages.update_table(readme);
    if (options.pictures) pages.update_pictures(readme);
  }
  note(fmt::format("aisp: {} looked at, {} {}", base::plural(readmes.size(), "README"), pages.wrong(),
                   options.check ? "differ" : "not written"));
  if (pages.wrong() == 0) return Exit::good;
  return options.check ? Exit::failed : Exit::usage;
}

}  // namespace aisp::cli
