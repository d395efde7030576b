{
  'variables': {
    # Sanitizers to build with, as in `node-gyp rebuild -- -Dsan=address,undefined`.
    'san%': '',
  },
  'targets': [
    {
      'target_name': 'kprobe',
      'sources': ['native/binding.c', 'native/netlink_socket.c'],
      'defines': ['_GNU_SOURCE'],
      'cflags': [
        '-std=c11', '-fvisibility=hidden',
        '-Wall', '-Wextra', '-Wconversion', '-Wshadow', '-Werror',
      ],
      'ldflags': ['-Wl,-z,relro', '-Wl,-z,now', '-Wl,-z,noexecstack'],
      'conditions': [
        ['san==""', {
          # An older compiler only warns that it knows no level 3.
          'cflags': [
            '-U_FORTIFY_SOURCE', '-D_FORTIFY_SOURCE=3', '-Wno-error=cpp',
            '-fstack-protector-strong', '-fstack-clash-protection',
          ],
        }, {
          'cflags': ['-g', '-fno-omit-frame-pointer', '-fsanitize=<(san)', '-fno-sanitize-recover=all'],
          'ldflags': ['-fsanitize=<(san)'],
        }],
        ['san=="" and target_arch=="x64"', { 'cflags': ['-fcf-protection'] }],
      ],
    },
  ],
}
