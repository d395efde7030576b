import { type FlagSpec, grouped } from './flag.ts'

/** Flags of `kprobe api`. */
export const API_FLAGS: readonly FlagSpec[] = grouped('API', [
  {
    name: 'listen',
    kind: 'text',
    placeholder: 'ADDRESS',
    default: 'unix:///run/kprobe/api.sock',
    help: 'gRPC address: unix:///PATH, or tcp://IP:PORT (without TLS on loopback only). With --print or --exec the server runs only if --listen is given. With --service-proxy-name=NAME the default is unix:///run/kprobe/api-NAME.sock',
  },
  {
    name: 'print',
    kind: 'bool',
    help: 'print the state as JSON lines, one Service with its endpoints a line, then exit',
  },
  {
    name: 'watch',
    kind: 'bool',
    help: 'with --print: print the whole state again after each change, followed by an empty line',
  },
  {
    name: 'diff',
    kind: 'bool',
    help: 'with --print: print only changes (Set, Delete), followed by a Sync; not with --watch',
  },
  {
    name: 'exec',
    kind: 'text',
    placeholder: 'CMD',
    help: 'run this for each state, with the output of --print on its standard input: a program (arguments follow --), or a line for /bin/sh -c if it has spaces and names no program. One run at a time, the newest state wins; a failed run is retried with backoff from 1 s to 1 min. The exit code of a pipe is that of its last command, unless the shell has pipefail (dash 0.5.12 has not). May be repeated',
  },
  {
    name: 'exec-timeout',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '1m0s',
    help: 'kill a run and its children after this time; 0: no limit',
  },
])

/** Flags for certificate, key and the clients' authority, in this order. */
export const API_TLS_FLAGS: readonly FlagSpec[] = grouped('API', [
  { name: 'api-tls-cert', kind: 'text', placeholder: 'FILE', help: 'server certificate (PEM)' },
  { name: 'api-tls-key', kind: 'text', placeholder: 'FILE', help: 'server key (PEM)' },
  {
    name: 'api-tls-client-ca',
    kind: 'text',
    placeholder: 'FILE',
    help: 'CA certificates that client certificates must be signed by (PEM)',
  },
])

/** Flags of `kprobe run`. */
export const RUN_API_FLAGS: readonly FlagSpec[] = grouped('API', [
  {
    name: 'api',
    kind: 'text',
    placeholder: 'ADDRESS',
    help: 'serve the back-end API at this address, unix:///PATH or tcp://IP:PORT; empty disables it; not with --once',
  },
  ...API_TLS_FLAGS,
])

/** Flags of `kprobe run` with another meaning for `kprobe api`, for its help. */
export const API_BESIDE_FLAGS: readonly FlagSpec[] = grouped('API', [
  {
    name: 'metrics-bind-address',
    kind: 'text',
    placeholder: 'IP:PORT',
    help: 'serve metrics at this address; empty disables it',
  },
  {
    name: 'once',
    kind: 'bool',
    help: 'with --exec: exit after the first run of each program, with 0 if all succeeded',
  },
])
