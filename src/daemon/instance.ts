import { readlink } from 'node:fs/promises'
import { MODES } from '../modes/registry.ts'

/** What makes a proxy the only one of its name here: docs/decisions/0021. */
export interface Instance {
  /** Of the lock (takeLock): one daemon of each name, whatever its mode. */
  readonly lock: string
  /** A lock for objects whose names two proxies can have in common. */
  readonly objectsLock: string | undefined
  /** Why a second proxy that asks for that one is refused. */
  readonly collision: string | undefined
}

/**
 * `name` is the value of --service-proxy-name, undefined for the proxy without one. A DNS label has no dot and no slash:
 * no two names have a lock in common.
 */
export function instanceOf(name: string | undefined): Instance {
  if (name === undefined) return { lock: LOCK_NAME, objectsLock: undefined, collision: undefined }
  const lock = MODES.find(mode => mode.lock !== undefined)?.lock
  return { lock: `${LOCK_NAME}/${name}`, objectsLock: lock?.of(name), collision: lock?.taken }
}

const LOCK_NAME = 'kprobe/kube-proxy'

/** The network namespace of a process, by its folder in /proc; undefined where it may not be read. */
export async function networkNamespace(folder = '/proc/self'): Promise<string | undefined> {
  try {
    return await readlink(`${folder}/ns/net`)
  } catch {
    return undefined
  }
}
