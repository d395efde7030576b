import { readFileSync } from 'node:fs'
import { readdir } from 'node:fs/promises'
import { systemClock } from '../base/clock.ts'
import { networkNamespace } from '../daemon/instance-lock.ts'
import { openSockDiag } from '../daemon/open.ts'
import { listListeners, socketsOfProcess } from '../kernel/socket/listeners.ts'
import { Connection } from '../netlink/connection.ts'
import { lent, readText } from './io.ts'

/** Reads the non-empty lines of a file of /proc; none if it does not exist. */
export async function readLines(path: string): Promise<readonly string[]> {
  return (await readText(path))?.split('\n').filter(line => line !== '') ?? []
}

/**
 * Finds processes by name in the network namespace of this process, as far as /proc shows them. A container may see
 * only its own processes, and the network namespace of a more privileged process is not readable.
 */
export async function processesNamed(name: string, proc = '/proc'): Promise<readonly number[]> {
  return (await processesOf(new Set([name]), proc)).map(({ pid }) => pid).sort((a, b) => a - b)
}

interface RunningProcess {
  readonly name: string
  readonly pid: number
}

/** As processesNamed, for several names in one pass. */
export async function processesOf(
  names: ReadonlySet<string>,
  proc = '/proc',
): Promise<readonly RunningProcess[]> {
  const here = await networkNamespace(`${proc}/self`)
  const found: RunningProcess[] = []
  for (const [index, entry] of (await readdir(proc)).entries()) {
    if (index % SLICE === SLICE - 1) await systemClock.breathe()
    if (!/^\d+$/.test(entry)) continue
    const name = nameOf(`${proc}/${entry}`)
    if (name === undefined || !names.has(name)) continue
    if (here !== undefined && (await networkNamespace(`${proc}/${entry}`)) === here)
      found.push({ name, pid: Number(entry) })
  }
  return found
}

/** Finds the name of the process that listens at a TCP port of this network namespace, as far as /proc shows its sockets. */
export async function holderOfPort(port: number): Promise<string | undefined> {
  const connection = new Connection({ transport: openSockDiag(), clock: systemClock })
  const listeners = await lent(connection, its => listListeners(its))
  const holders = listeners.filter(each => each.protocol === 'TCP' && each.port === port)
  for (const entry of await readdir('/proc')) {
    await systemClock.breathe()
    try {
      const sockets = socketsOfProcess(Number(entry))
      if (holders.some(({ inode }) => sockets.has(inode))) return nameOf(`/proc/${entry}`)
    } catch {
      // It is no process, has ended, or is hidden.
    }
  }
  return undefined
}

/** Processes between two breaths of the event loop: a few milliseconds. */
const SLICE = 64

/** Reads synchronously, which takes a tenth of the CPU of a read in the thread pool: the daemon does this each minute. */
function nameOf(folder: string): string | undefined {
  try {
    return readFileSync(`${folder}/comm`, 'utf8').trim()
  } catch {
    // The process has ended, or is hidden.
    return undefined
  }
}
