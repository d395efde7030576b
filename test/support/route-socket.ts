import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { onTestFinished } from 'vitest'
import { findAddon, openNetlink } from '../../src/netlink/native.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { patientMs } from './patience.ts'

export const NETLINK_ROUTE = 0
export const RTM_GETLINK = 18
export const NLM_F_REQUEST = 1
export const NLM_F_DUMP = 0x300
export const EBADF = { name: 'SystemError', code: 'EBADF', errno: 9 }

/** The addon under test; the run under sanitizers gives its own. */
export const addon = process.env.KPROBE_TEST_ADDON ?? findAddon()

export function openRoute(receiveBufferBytes = 1 << 20): Transport {
  const transport = openNetlink({
    protocol: NETLINK_ROUTE,
    sendBufferBytes: 1 << 20,
    receiveBufferBytes,
    addon,
  })
  onTestFinished(() => transport.close())
  return transport
}

/** A request for the link `lo`, or for all. */
export function getLink(flags = 0): Uint8Array {
  const view = new DataView(new ArrayBuffer(32))
  view.setUint32(0, 32, true)
  view.setUint16(4, RTM_GETLINK, true)
  view.setUint16(6, NLM_F_REQUEST | flags, true)
  view.setInt32(20, flags === NLM_F_DUMP ? 0 : 1, true)
  return new Uint8Array(view.buffer)
}

export const buffer = () => new Uint8Array(65536)

/** The types of the messages in the next datagram; undefined when none waits. */
export function receiveTypes(transport: Transport): number[] | undefined {
  const into = buffer()
  const length = transport.receive(into)
  if (length === undefined) return undefined
  const view = new DataView(into.buffer, 0, length)
  const types: number[] = []
  for (let at = 0; at + 16 <= length; at += (view.getUint32(at, true) + 3) & ~3) {
    types.push(view.getUint16(at + 4, true))
  }
  return types
}

export function thrownBy(run: () => unknown): unknown {
  try {
    run()
  } catch (error) {
    return error
  }
  return undefined
}

export const CHILD = `
  const addon = require(process.env.ADDON)
  const { Worker } = require('node:worker_threads')
  const { readdirSync, readlinkSync } = require('node:fs')
  const link = fd => { try { return readlinkSync('/proc/self/fd/' + fd) } catch { return '' } }
  const sockets = () => readdirSync('/proc/self/fd').filter(fd => link(fd).startsWith('socket:')).length
  const open = () => addon.open(0, 1 << 20, 1 << 20)
  const dump = Buffer.from('2000000012000103'.padEnd(64, '0'), 'hex')
  const later = ms => new Promise(resolve => setTimeout(resolve, ms))
`

/** Runs `script` in a Node of its own, where an abort harms nobody, and gives what it printed. */
export async function inChild(script: string, ...flags: string[]): Promise<string> {
  const args = [...flags, '--input-type=commonjs', '-e', CHILD + script]
  const options = { env: { ...process.env, ADDON: addon }, timeout: patientMs(20_000) }
  return (await promisify(execFile)(process.execPath, args, options)).stdout.trim()
}
