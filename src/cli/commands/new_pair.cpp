// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <regex>
#include <string_view>

#include "base/system/files.hpp"
#include "base/system/terminal.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "cli/templates.hpp"
#include "evidence/names.hpp"

namespace aisp::cli {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::Exit;

struct NewPairOptions {
  std::string name;
  std::string chapter;
  bool host = false, multi_gpu = false, library = false, python = false;

  std::string_view kind() const {
    return host ? "host" : multi_gpu ? "multi_gpu" : library ? "library" : python ? "python" : "gpu";
  }
};

// Whether cmake/registry.cmake and readers of results accept `name` for a pair or its folder.
bool good_name(const std::string& name) { return evidence::is_plain(name) && name.front() >= 'a'; }

// Whether `words`, which blanks separate, have `name`.
bool is_among(std::string_view words, const std::string& name) {
  const std::vector<std::string> all = base::split(words, ' ');
  return std::ranges::find(all, name) != all.end();
}

// A pair's name and its folder's are identifiers of C++. These are none, or macros of headers that a pair may include.
bool is_taken_by_the_language(const std::string& name) {
  return is_among(
      "alignas alignof and and_eq asm"
      " assert auto bitand bitor bool break case catch char char16_t char32_t char8_t "
      "class co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue "
      "decltype default delete do double dynamic_cast else enum errno explicit export extern false float for friend "
      "goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected "
      "public register reinterpret_cast requires return short signed sizeof static static_assert static_cast stderr "
      "stdin stdout struct switch template this thread_local throw true try typedef typeid typename union unsigned "
      "using virtual void volatile wchar_t while xor xor_eq",
      name);
}

// The script's folder comes first where Python looks for modules, so a script of such a name would be imported in their place, by
// the script or by what it imports: modules of the standard library, arrays' libraries and what these need.
bool is_module_of_python(const std::string& name) {
  return is_among(
      "abc aifc aisp annotationlib antigravity argparse array ast asynchat asyncio asyncore atexit audioop base64 bdb "
      "binascii binhex bisect builtins bz2 calendar cgi cgitb chunk cmath cmd code codecs codeop collections colorsys "
      "compileall compression concurrent configparser contextlib contextvars copy copyreg crypt csv ctypes cupy curses "
      "dataclasses datetime dbm decimal difflib dis distutils doctest email encodings ensurepip enum errno fastrlock "
      "faulthandler fcntl filecmp fileinput filelock fnmatch fractions fsspec ftplib functools gc genericpath getopt "
      "getpass gettext glob graphlib grp gzip hashlib heapq hmac html http idlelib imaplib imghdr imp importlib inspect io "
      "ipaddress itertools jinja2 json keyword lib2to3 linecache llvmlite locale logging lzma mailbox mailcap marshal math "
      "mimetypes mmap modulefinder mpmath msilib msvcrt multiprocessing netrc networkx nis nntplib nt ntpath nturl2path "
      "numba numbers numpy opcode operator optparse os ossaudiodev packaging pandas pathlib pdb pickle pickletools pipes "
      "pkgutil platform plistlib poplib posix posixpath pprint profile pstats pty pwd py_compile pyclbr pydoc pydoc_data "
      "pyexpat queue quopri random re readline reprlib resource rlcompleter runpy sched scipy secrets select selectors "
      "setuptools shelve shlex shutil signal site smtpd smtplib sndhdr socket socketserver spwd sqlite3 sre_compile "
      "sre_constants sre_parse ssl stat statistics string stringprep struct subprocess sunau sympy symtable sys sysconfig "
      "syslog tabnanny tarfile telnetlib tempfile termios textwrap this threading time timeit tkinter token tokenize "
      "tomllib torch trace traceback tracemalloc triton tty turtle turtledemo types typing unicodedata unittest urllib uu "
      "uuid venv warnings wave weakref webbrowser winreg winsound wsgiref xdrlib xml xmlrpc yaml zipapp zipfile zipimport "
      "zlib zoneinfo",
      name);
}

// Looks outside of comments.
bool is_word_of(std::string_view code, const std::string& name) {
  const std::regex word{"\\b" + name + "\\b"};
  for (const std::string& line : base::split(code, '\n'))
    if (std::regex_search(line.substr(0, line.find("//")), word)) return true;
  return false;
}

// Whatever cannot be read holds no pairs.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it{folder, error}; !error && it != fs::directory_iterator{}; it.increment(error))
    entries.push_back(it->path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool holds_sources(const fs::path& folder) {
  const std::vector<fs::path> entries = entries_of(folder);
  return std::any_of(entries.begin(), entries.end(),
                     [](const fs::path& path) { return path.extension() == ".cu" || path.extension() == ".cpp"; });
}

// A pair beside the folders of pairs, or beside the project's CMakeLists.txt, would not be built.
void refuse_place_above_pairs(const fs::path& here) {
  std::error_code ignored;
  const bool is_project = fs::exists(here / "CMakeLists.txt", ignored);
  std::string example = "kernels/sums";
  bool above = is_project;
  for (const fs::path& path : entries_of(here))
    if (!is_project && is_folder(path) && holds_sources(path)) {
      example = path.filename().string();
      above = true;
    }
  if (!above) return;
  throw Error{Exit::usage,
              fmt::format("{} is no folder of pairs; call aisp new in one, as in {}, or in the source tree of aisp with "
                          "--chapter",
                          here.string(), example)};
}

fs::path folder_for(const NewPairOptions& options) {
  if (options.chapter.empty()) {
    const fs::path here = fs::current_path();
    refuse_place_above_pairs(here);
    if (!good_name(here.filename().string()))
      throw Error{Exit::usage,
                  fmt::format("the folder '{}' is a namespace too, so its name must match [a-z][a-z0-9_]*; rename it",
                              here.filename().string())};
    if (is_taken_by_the_language(here.filename().string()))
      throw Error{Exit::usage, fmt::format("the folder '{}' is a namespace too, and that is a word of C++; rename it",
                                           here.filename().string())};
    return here;
  }
  static const std::regex chapter{"ch[0-9]{2}"};
  if (!std::regex_match(options.chapter, chapter))
    throw Error{Exit::usage, fmt::format("--chapter takes ch and two digits, as ch07, not '{}'", options.chapter)};
  if (!is_folder("chapters"))
    throw Error{Exit::usage,
                "there is no folder chapters here; --chapter is for the source tree of aisp, elsewhere call aisp new in a "
                "folder of pairs"};
  return fs::path{"chapters"} / options.chapter;
}

// Names are unique over all folders of pairs that lie side by side.
void refuse_taken_name(const fs::path& folder, const std::string& name) {
  const fs::path parent = folder.parent_path();
  std::vector<fs::path> folders = entries_of(parent.empty() ? "." : parent);
  for (const fs::path& each : folders)
    for (const char* extension : {".cu", ".cpp"}) {
      const fs::path path = each / (name + extension);
      std::error_code ignored;
      if (fs::exists(fs::symlink_status(path, ignored)))
        throw Error{Exit::usage, fmt::format("there is {} already; names of pairs are unique, so choose another", path.string())};
    }
}

const Template& template_of(std::string_view kind) {
  const auto all = templates();
  return *std::find_if(all.begin(), all.end(), [&](const Template& each) { return each.kind == kind; });
}

void replace_all(std::string& text, const std::string& before, const std::string& after) {
  for (std::size_t at = 0; (at = text.find(before, at)) != std::string::npos; at += after.size())
    text.replace(at, before.size(), after);
}

// Returns what a shell takes before "python3" so that the module is found: nothing where it is installed into an environment of
// Python, as by the wheel.
std::string python_settings() {
  const fs::path folder = base::self_path().parent_path();
  std::error_code ignored;
  if (!fs::exists(folder / "libaisp.so", ignored)) {
    const fs::path installed = (folder / "../lib/aisp/python").lexically_normal();
    return fs::exists(installed / "aisp", ignored) ? fmt::format("PYTHONPATH={} ", installed.string()) : "";
  }
  // A folder of a build lies in the source tree, at whatever depth.
  for (fs::path above = folder; above != above.root_path(); above = above.parent_path())
    if (const fs::path module = above / "python/src"; fs::exists(module / "aisp", ignored))
      return fmt::format("PYTHONPATH={} AISP_BUILD={} ", module.string(), folder.string());
  return "";
}

// A script is no part of any build, so it may lie anywhere.
Exit write_script(const NewPairOptions& options) {
  const Template& model = template_of(options.kind());
  if (is_module_of_python(options.name))
    throw Error{Exit::usage, fmt::format("bad name '{0}'; Python would import {0}.py instead of its module {0}; choose another",
                                         options.name)};
  const fs::path path = options.name + std::string{model.extension};
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(path, ignored)))
    throw Error{Exit::usage, fmt::format("there is {} already; choose another name", path.string())};
  std::string text{model.text};
  replace_all(text, "\"starter\"", fmt::format("\"{}\"", options.name));
  base::write_atomically(path, text);
  print(base::on_screen(fmt::format("{}: a script that measures and passes; put your own functions into it.", path.string())) +
        '\n' + base::on_screen(fmt::format("Next: {}python3 {}", python_settings(), path.string())) + '\n');
  return Exit::good;
}

Exit write_new(const NewPairOptions& options) {
  if (!good_name(options.name))
    throw Error{Exit::usage,
                fmt::format("bad name '{}'; the file's name is the target's and the symbol's, so it must match [a-z][a-z0-9_]*, "
                            "128 of them at most",
                            base::one_line(options.name, 200))};
  if (options.python) return write_script(options);
  const fs::path folder = folder_for(options);
  refuse_taken_name(folder, options.name);
  const Template& model = template_of(options.kind());
  const std::string chapter = folder.filename().string(), declared = fmt::format("Pair {}{{", model.kind);
  std::string text{model.text};
  replace_all(text, "aisp::starter", "aisp::" + chapter);
  std::string rest = text;
  replace_all(rest, declared, "");
  if (is_taken_by_the_language(options.name) || is_word_of(rest, options.name))
    throw Error{Exit::usage, fmt::format("bad name '{}'; it is the pair's symbol too, and that word has a meaning in its code "
                                         "already; choose another",
                                         options.name)};
  replace_all(text, declared, fmt::format("Pair {}{{", options.name));
  const fs::path path = folder / (options.name + std::string{model.extension});
  base::write_atomically(path, text);
  print(base::on_screen(fmt::format("{}: a pair that builds and passes; put your own into it.", path.string())) +
        fmt::format("\nNext: build, then call the program that holds it: verify --targets {0}:{1}, then run --targets {0}:{1}\n",
                    chapter, options.name));
  return Exit::good;
}

}  // namespace

void add_new(CLI::App& app, Action& action) {
  auto options = std::make_shared<NewPairOptions>();
  CLI::App* command = app.add_subcommand("new", "write a pair that builds and passes into the present folder of pairs");
  command->add_option("NAME", options->name, "its name: lower case, digits, underscores")->type_name("")->required();
  CLI::Option* host = command->add_flag("--host", options->host, "a host pair");
  CLI::Option* several = command->add_flag("--multi-gpu", options->multi_gpu, "a pair on two GPUs");
  CLI::Option* library = command->add_flag("--library", options->library, "a pair with a library's call");
  CLI::Option* python = command->add_flag("--python", options->python, "a script for the module aisp of Python");
  host->excludes(several)->excludes(library)->excludes(python);
  several->excludes(library)->excludes(python);
  library->excludes(python);
  command->add_option("--chapter", options->chapter, "into this chapter of aisp's source tree, as ch07")
      ->type_name("chNN")
      ->excludes(python);
  command->callback([options, &action] { action = [options] { return write_new(*options); }; });
}

}  // namespace aisp::cli
