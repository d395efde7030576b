import { closeSync, openSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { onTestFinished } from 'vitest'
import { enterNetns, freshNetns } from '../support/lab/netns.ts'
import { ip } from '../support/lab/topology.ts'
import { eventually } from '../support/patience.ts'

export interface CrowdOptions {
  readonly port: number
  readonly host?: string
  readonly sources: readonly string[]
  /** Of each source. */
  readonly count: number
  /** What each connection says; then it is silent. */
  readonly words?: string
  /** So many that are closed are opened anew; 1,000 unless told otherwise. */
  readonly returns?: number
}

const RETURN_MS = 500

/** Connections that hold on to a server, from several addresses of one party. Resolves when all were open once. */
export async function crowd(options: CrowdOptions): Promise<void> {
  const { port, host = '127.0.0.1', sources, count, words = '', returns = 1_000 } = options
  const sockets = new Set<Socket>()
  let isOver = false
  let connected = 0
  let left = returns
  const open = (localAddress: string): void => {
    if (isOver) return
    const socket = connect({ port, host, localAddress })
    sockets.add(socket)
    let isOpen = false
    const opened = (): void => {
      if (!isOpen) connected++
      isOpen = true
    }
    // A server that closes at once may reset a connection before this process has seen it open.
    socket.on('error', error => {
      if ('code' in error && error.code === 'ECONNRESET') opened()
    })
    socket.resume().once('connect', () => {
      opened()
      socket.write(words)
    })
    socket.once('close', () => {
      sockets.delete(socket)
      if (left-- > 0) setTimeout(() => open(localAddress), RETURN_MS)
    })
  }
  onTestFinished(() => {
    isOver = true
    for (const socket of sockets) socket.destroy()
  })
  for (let round = 0; round < count; round++) {
    for (const source of sources) open(source)
    // No more at a time than the server's queue holds.
    if (round % 10 === 9 || round === count - 1)
      await eventually(() => connected >= (round + 1) * sources.length, { progress: () => connected })
  }
}

/** The address of the node that clients outside reach it at. */
export const NODE_ADDRESS = '198.18.0.1'
/** Addresses outside, each in a prefix of its own. */
export const OUTSIDE = Array.from({ length: 8 }, (_, index) => `198.18.${index + 1}.1`)

/** Gives the node neighbors in another network namespace; the result runs something there. */
export function outside(): <R>(run: () => Promise<R>) => Promise<R> {
  const here = openSync('/proc/thread-self/ns/net', 'r')
  freshNetns()
  const there = openSync('/proc/thread-self/ns/net', 'r')
  const enter = (descriptor: number) => enterNetns(`/proc/self/fd/${descriptor}`)
  enter(here)
  ip([
    'link add name inward type veth peer name outward',
    `link set outward netns /proc/${process.pid}/fd/${there}`,
    `addr add ${NODE_ADDRESS}/16 dev inward`,
    'link set inward up',
  ])
  enter(there)
  ip([...OUTSIDE.map(address => `addr add ${address}/16 dev outward`), 'link set outward up'])
  enter(here)
  onTestFinished(() => {
    closeSync(here)
    closeSync(there)
  })
  return async run => {
    enter(there)
    try {
      return await run()
    } finally {
      enter(here)
    }
  }
}
