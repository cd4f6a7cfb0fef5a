// SPDX-License-Identifier: Apache-2.0
// Names of functions out of an executable's or a library's own tables.
#include <cxxabi.h>
#include <elf.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/system/crash_trace.hpp"

namespace aisp::base {
namespace {

class Reader {
 public:
  explicit Reader(const std::filesystem::path& file) : stream_{file, std::ios::binary} {}
  template <class T>
  std::optional<T> at(std::uint64_t offset) {
    T value;
    stream_.clear();
    stream_.seekg(static_cast<std::streamoff>(offset));
    if (!stream_.read(reinterpret_cast<char*>(&value), sizeof value)) return std::nullopt;
    return value;
  }
  template <class T>
  std::vector<T> all_at(std::uint64_t offset, std::uint64_t bytes) {
    constexpr std::uint64_t most_bytes = std::uint64_t{256} << 20;
    if (bytes > most_bytes) return {};
    std::vector<T> values(bytes / sizeof(T));
    stream_.clear();
    stream_.seekg(static_cast<std::streamoff>(offset));
    if (!stream_.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)))) return {};
    return values;
  }
  std::string text_at(std::uint64_t offset) {
    stream_.clear();
    stream_.seekg(static_cast<std::streamoff>(offset));
    std::string text;
    std::getline(stream_, text, '\0');
    return text;
  }

 private:
  std::ifstream stream_;
};

// The address that the file's own tables use for a place in the file.
std::optional<std::uint64_t> address_of(Reader& file, const Elf64_Ehdr& header, std::uint64_t offset) {
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    const auto segment = file.at<Elf64_Phdr>(header.e_phoff + i * std::uint64_t{header.e_phentsize});
    if (!segment) return std::nullopt;
    if (segment->p_type == PT_LOAD && offset >= segment->p_offset && offset - segment->p_offset < segment->p_filesz)
      return offset - segment->p_offset + segment->p_vaddr;
  }
  return std::nullopt;
}

struct Function {
  std::string name;
  std::uint64_t begin = 0;
};

std::optional<Function> function_in(Reader& file, const Elf64_Ehdr& header, const Elf64_Shdr& table, std::uint64_t address) {
  const auto names = file.at<Elf64_Shdr>(header.e_shoff + table.sh_link * std::uint64_t{header.e_shentsize});
  if (!names || table.sh_entsize != sizeof(Elf64_Sym)) return std::nullopt;
  for (const Elf64_Sym& symbol : file.all_at<Elf64_Sym>(table.sh_offset, table.sh_size)) {
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF) continue;
    if (address >= symbol.st_value && address - symbol.st_value < symbol.st_size)
      return Function{file.text_at(names->sh_offset + symbol.st_name), symbol.st_value};
  }
  return std::nullopt;
}

// All functions where the file was not stripped, otherwise those that it exports.
std::optional<Function> function_at(Reader& file, const Elf64_Ehdr& header, std::uint64_t address) {
  for (const Elf64_Word wanted : {Elf64_Word{SHT_SYMTAB}, Elf64_Word{SHT_DYNSYM}})
    for (unsigned i = 0; i < header.e_shnum; ++i) {
      const auto section = file.at<Elf64_Shdr>(header.e_shoff + i * std::uint64_t{header.e_shentsize});
      if (!section || section->sh_type != wanted) continue;
      if (auto function = function_in(file, header, *section, address)) return function;
    }
  return std::nullopt;
}

std::string readable(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text{abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         &std::free};
  return status == 0 ? std::string{text.get()} : name;
}

std::string hexadecimal(std::uint64_t value) {
  char text[17] = {};
  return {text, std::to_chars(text, text + sizeof text, value, 16).ptr};
}

}  // namespace

std::string frame_text(std::string_view place) {
  const std::size_t plus = place.rfind("+0x");
  std::uint64_t offset = 0;
  if (plus == std::string_view::npos ||
      std::from_chars(place.data() + plus + 3, place.data() + place.size(), offset, 16).ec != std::errc{})
    return std::string{place};
  const std::filesystem::path path{place.substr(0, plus)};
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::string{place};
  Reader file{path};
  const auto header = file.at<Elf64_Ehdr>(0);
  if (header && std::memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 && header->e_ident[EI_CLASS] == ELFCLASS64)
    if (const auto address = address_of(file, *header, offset))
      if (const auto function = function_at(file, *header, *address))
        return readable(function->name) + " + 0x" + hexadecimal(*address - function->begin);
  return path.filename().string() + " + 0x" + hexadecimal(offset);
}

std::string stack_text(const std::vector<std::string>& places) {
  constexpr std::size_t most_frames = 16, longest_frame = 400;
  std::string text;
  for (std::size_t i = 0; i < std::min(places.size(), most_frames); ++i) {
    std::string frame = frame_text(places[i]);
    const bool is_main = frame.starts_with("main + ");
    if (frame.size() > longest_frame) frame = frame.substr(0, longest_frame) + "...";
    for (char& c : frame)
      if (c < ' ' || c > '~') c = '?';
    text += "\n#" + std::to_string(i) + ' ' + frame;
    if (is_main) break;
  }
  return text;
}

}  // namespace aisp::base
