import { type FlagSpec, grouped } from './flag.ts'

/** Of `kprobe api`. */
export const API_FLAGS: readonly FlagSpec[] = grouped('API', [
  {
    name: 'listen',
    kind: 'text',
    placeholder: 'ADDRESS',
    default: 'unix:///run/kprobe/api.sock',
    help: 'serve gRPC here: unix:///PATH, or tcp://IP:PORT, in plain at loopback only; beside --print and --exec only where it is given; unset with --service-proxy-name=NAME: unix:///run/kprobe/api-NAME.sock',
  },
  {
    name: 'print',
    kind: 'bool',
    default: 'false',
    help: 'print the state once it is complete, one line of JSON a Service with its endpoints, and end',
  },
  {
    name: 'watch',
    kind: 'bool',
    default: 'false',
    help: 'go on: print the whole state again at each change, an empty line behind each',
  },
  {
    name: 'diff',
    kind: 'bool',
    default: 'false',
    help: 'go on, and print only what changes: Set and Delete, with a Sync behind each change; not with --watch',
  },
  {
    name: 'exec',
    kind: 'text',
    placeholder: 'CMD',
    default: '',
    help: 'start this for each state, with what --print prints on its standard input: a program, with the arguments behind --; or, where nothing has this name and it has blanks, a line for /bin/sh, with its own; one run at a time, and the newest state wins; one that fails is repeated after 1 s, then later and later, up to 1 min, but a newer state waits for 1 s at most; may be repeated',
  },
  {
    name: 'exec-timeout',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '1m0s',
    help: 'a run that takes longer is ended, with all that it has started; 0: no limit',
  },
])

/** Certificate, key and the authority of the clients, in this order. */
export const API_TLS_FLAGS: readonly FlagSpec[] = grouped('API', [
  {
    name: 'api-tls-cert',
    kind: 'text',
    placeholder: 'FILE',
    default: '',
    help: 'certificate of the API server (PEM)',
  },
  { name: 'api-tls-key', kind: 'text', placeholder: 'FILE', default: '', help: 'its key (PEM)' },
  {
    name: 'api-tls-client-ca',
    kind: 'text',
    placeholder: 'FILE',
    default: '',
    help: 'authorities whose certificates clients have to show (PEM)',
  },
])

/** Of `kprobe run`. */
export const RUN_API_FLAGS: readonly FlagSpec[] = grouped('API', [
  {
    name: 'api',
    kind: 'text',
    placeholder: 'ADDRESS',
    default: '',
    help: 'tell other programs what Services mean here, as `kprobe api` does: unix:///PATH or tcp://IP:PORT; unset: nobody; not with --once',
  },
  ...API_TLS_FLAGS,
])

/** Flags of `kprobe run` that mean something else to `kprobe api`, for its help. */
export const API_BESIDE_FLAGS: readonly FlagSpec[] = grouped('API', [
  {
    name: 'metrics-bind-address',
    kind: 'text',
    placeholder: 'IP:PORT',
    default: '',
    help: 'serve metrics here; unset: nowhere',
  },
  {
    name: 'once',
    kind: 'bool',
    default: 'false',
    help: 'end after the first run of each program (--exec), with 0 when all went well',
  },
])
