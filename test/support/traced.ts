import { readFileSync } from 'node:fs'

/** What a program did to the world outside of its memory, as strace saw it; failed attempts count. */
export interface Traced {
  readonly programs: readonly string[]
  /** Files that were opened for writing, made, changed or removed; unix sockets among them. */
  readonly files: readonly string[]
  /** Names of abstract unix sockets that were bound. */
  readonly abstractSockets: readonly string[]
  /** Ports of TCP or UDP that were bound. */
  readonly ports: readonly number[]
  /** Processes that were made; threads are none. */
  readonly processes: number
}

const CALLS = [
  'execve,execveat,fork,vfork,clone,clone3,open,openat,openat2,creat,truncate,bind',
  'mkdir,mkdirat,mknod,mknodat,link,linkat,symlink,symlinkat,rename,renameat,renameat2',
  'unlink,unlinkat,rmdir,chmod,fchmodat,chown,lchown,fchownat,utimensat,setxattr,mount,umount2,init_module,finit_module',
]

/** A command that runs another one and writes what it did to a file. */
export function straceTo(trace: string): readonly string[] {
  return ['strace', '-f', '--seccomp-bpf', '-s', '400', '-o', trace, '-e', `trace=${CALLS.join()}`]
}

const WRITES = /O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND/
const READS = /^(open|openat|openat2)$/

export function readTrace(trace: string): Traced {
  const programs: string[] = []
  const files: string[] = []
  const abstractSockets: string[] = []
  const ports: number[] = []
  let processes = 0
  const lines = readFileSync(trace, 'utf8').split('\n')
  const isForeign = foreignProcesses(lines)
  for (const line of lines) {
    const [, pid = '', call = '', given = ''] = /^(\d+) +(\w+)\((.*)/.exec(line) ?? []
    if (isForeign(pid) && !call.startsWith('exec')) continue
    const paths = [...given.matchAll(/"((?:[^"\\]|\\.)*)"/g)].map(([, path = '']) => path)
    if (call === '' || (READS.test(call) && !WRITES.test(given))) continue
    if (/^(v?fork|clone3?)$/.test(call)) processes += given.includes('CLONE_THREAD') ? 0 : 1
    else if (call.startsWith('exec')) programs.push(...paths.slice(0, 1))
    else if (call !== 'bind') files.push(...paths)
    else if (given.includes('AF_UNIX') && given.includes('@"'))
      abstractSockets.push(`@${paths[0]?.replace(/(\\0)+$/, '')}`)
    else if (given.includes('AF_UNIX')) files.push(...paths)
    else ports.push(...[...given.matchAll(/port=htons\((\d+)\)/g)].map(([, port]) => Number(port)))
  }
  return { programs, files, abstractSockets, ports, processes }
}

/** Processes of the programs that were started, and of those that these start: what they do is theirs. */
function foreignProcesses(lines: readonly string[]): (pid: string) => boolean {
  const parents = new Map<string, string>()
  const began = new Set<string>()
  for (const line of lines.slice(1)) {
    const [, pid = '', call = '', child] = /^(\d+) +(?:<\.\.\. )?(\w+)\b.*?(?: = (\d+))?$/.exec(line) ?? []
    if (call.startsWith('exec')) began.add(pid)
    else if (/^(v?fork|clone3?)$/.test(call) && child !== undefined) parents.set(child, pid)
  }
  const isForeign = (pid: string): boolean => {
    const parent = parents.get(pid)
    return began.has(pid) || (parent !== undefined && isForeign(parent))
  }
  return isForeign
}
