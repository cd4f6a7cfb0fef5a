// SPDX-License-Identifier: Apache-2.0
#include "base/system/message_link.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/error.hpp"
#include "base/system/clock.hpp"

namespace aisp::base {
namespace {

constexpr int waiting_connections = 1024;
constexpr double between_attempts_s = 0.1;
constexpr int silence_limit_s = 30;  // until a machine that no longer answers counts as gone

struct MessageHead {
  std::uint32_t what_bytes = 0, body_bytes = 0;
  char kind = 0;
};

struct LocalAddress {
  sockaddr_un bytes{};
  socklen_t size = 0;
};

// The zero in front says that the name is no file.
LocalAddress local_address(std::string_view name) {
  LocalAddress address;
  address.bytes.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof address.bytes.sun_path - 1);
  std::memcpy(address.bytes.sun_path + 1, name.data(), length);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

constexpr std::string_view tcp = "tcp:";

struct HostAndPort {
  std::string host, port;
  bool is_loopback() const { return host == "localhost" || host.starts_with("127."); }
};

// The host may be an IPv6 address in brackets.
HostAndPort split_tcp(std::string_view address) {
  address.remove_prefix(tcp.size());
  const std::size_t colon = std::min(address.rfind(':'), address.size());
  std::string_view host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return {std::string{host}, std::string{address.substr(std::min(colon + 1, address.size()))}};
}

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressList look_up(const char* host, const std::string& port, int family, int flags, std::string& why) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(host, port.c_str(), &hints, &list); error != 0) why = ::gai_strerror(error);
  return {list, &::freeaddrinfo};
}

bool begin_listening(const Descriptor& listener, const sockaddr* address, socklen_t size) {
  return ::bind(listener.get(), address, size) == 0 && ::listen(listener.get(), waiting_connections) == 0;
}

Descriptor listen_on_port(const HostAndPort& place, std::string& why) {
  // A socket of IPv6 takes connections of IPv4 too; a machine may have no IPv6.
  for (const int family : {AF_INET6, AF_INET}) {
    if (place.is_loopback() && family == AF_INET6) continue;
    Descriptor listener{::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!listener.open()) continue;
    const AddressList list = look_up(place.is_loopback() ? place.host.c_str() : nullptr, place.port, family, AI_PASSIVE, why);
    if (!list) break;
    const int yes = 1, no = 0;
    // Allows a port at which connections of an ended run linger, but none at which another process listens.
    ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (family == AF_INET6) ::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    if (begin_listening(listener, list->ai_addr, list->ai_addrlen)) return listener;
    why = std::strerror(errno);
    break;
  }
  return {};
}

Descriptor connect_to_port(const HostAndPort& place, std::string& why) {
  const AddressList list = look_up(place.host.c_str(), place.port, AF_UNSPEC, 0, why);
  for (const addrinfo* each = list.get(); each != nullptr; each = each->ai_next) {
    Descriptor connection{::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    // A host that drops packets would keep connect() waiting for minutes.
    constexpr timeval longest{.tv_sec = 5, .tv_usec = 0};
    ::setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof longest);
    if (::connect(connection.get(), each->ai_addr, each->ai_addrlen) == 0) return connection;
    why = std::strerror(errno);
  }
  return {};
}

Descriptor connect_here(const std::string& name, std::string& why) {
  const LocalAddress address = local_address(name);
  Descriptor connection{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address.bytes), address.size) == 0) return connection;
  why = std::strerror(errno);
  return {};
}

Descriptor listen_here(const std::string& name, std::string& why) {
  const LocalAddress address = local_address(name);
  Descriptor listener{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (begin_listening(listener, reinterpret_cast<const sockaddr*>(&address.bytes), address.size)) return listener;
  why = std::strerror(errno);
  return {};
}

[[noreturn]] void no_way(const char* what, const std::string& address, const std::string& why) {
  const bool is_tcp = address.starts_with(tcp);
  throw Error{Exit::unfit, std::string{"cannot "} + what + (is_tcp ? " " : " the local socket ") +
                               address.substr(is_tcp ? tcp.size() : 0) + ": " + why};
}

}  // namespace

Descriptor listen_at(const std::string& address) {
  std::string why;
  Descriptor listener = address.starts_with(tcp) ? listen_on_port(split_tcp(address), why) : listen_here(address, why);
  if (!listener.open()) no_way("listen at", address, why);
  return listener;
}

Descriptor connect_to(const std::string& address, double patience_s) {
  const double deadline_s = monotonic_s() + patience_s;
  for (;;) {
    std::string why;
    Descriptor connection = address.starts_with(tcp) ? connect_to_port(split_tcp(address), why) : connect_here(address, why);
    if (connection.open()) return connection;
    if (monotonic_s() >= deadline_s) no_way("reach", address, why);
    sleep_s(between_attempts_s);
  }
}

MessageLink::MessageLink(Descriptor descriptor) : descriptor_{std::move(descriptor)} {
  ::fcntl(descriptor_.get(), F_SETFL, O_NONBLOCK);
  // The options of TCP fail on a socket of this machine, which needs none: it sends at once, and its other end cannot vanish.
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(descriptor_.get(), level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, silence_limit_s / 2);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, silence_limit_s * 1000);
}

void MessageLink::send(const Message& message) {
  MessageHead head{};
  head.what_bytes = static_cast<std::uint32_t>(message.what.size());
  head.body_bytes = static_cast<std::uint32_t>(message.body.size());
  head.kind = message.kind;
  char bytes[sizeof head] = {};
  std::memcpy(bytes, &head, sizeof head);
  unsent_.append(bytes, sizeof head).append(message.what).append(message.body);
  write_some();
}

void MessageLink::write_some() {
  while (open() && !unsent_.empty()) {
    const ssize_t count = ::send(descriptor_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    // The messages that came before the other end closed are still to be read.
    if (count <= 0) return unsent_.clear();
    unsent_.erase(0, static_cast<std::size_t>(count));
  }
}

std::optional<Message> MessageLink::next() {
  MessageHead head;
  if (received_.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, received_.data(), sizeof head);
  const std::size_t bytes = std::size_t{head.what_bytes} + head.body_bytes;
  if (bytes > longest_message_bytes) {
    close();
    return std::nullopt;
  }
  if (received_.size() < sizeof head + bytes) return std::nullopt;
  Message message{head.kind, received_.substr(sizeof head, head.what_bytes),
                  received_.substr(sizeof head + head.what_bytes, head.body_bytes)};
  received_.erase(0, sizeof head + bytes);
  return message;
}

std::vector<Message> MessageLink::move() {
  write_some();
  static thread_local std::array<char, 64 * 1024> buffer;
  std::vector<Message> messages;
  while (open()) {
    const ssize_t count = ::recv(descriptor_.get(), buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) break;
    if (count <= 0) {
      close();
      break;
    }
    received_.append(buffer.data(), static_cast<std::size_t>(count));
    while (std::optional<Message> message = next()) messages.push_back(std::move(*message));
  }
  return messages;
}

std::optional<Message> MessageLink::wait(double patience_s) {
  const double deadline_s = monotonic_s() + patience_s;
  for (;;) {
    if (std::optional<Message> message = next()) return message;
    const double left_s = deadline_s - monotonic_s();
    if (!open() || left_s <= 0) return std::nullopt;
    pollfd watched{descriptor_.get(), static_cast<short>(POLLIN | (has_unsent() ? POLLOUT : 0)), 0};
    ::poll(&watched, 1, static_cast<int>(std::min(left_s, 3600.0) * 1000) + 1);
    write_some();
    std::array<char, 4096> bytes;
    const ssize_t count = ::recv(descriptor_.get(), bytes.data(), bytes.size(), 0);
    if (count > 0) received_.append(bytes.data(), static_cast<std::size_t>(count));
    else if (count == 0 || (errno != EINTR && errno != EAGAIN)) close();
  }
}

}  // namespace aisp::base
