import type { takeLock } from '../base/instance-lock.ts'
import type { Log } from '../base/log.ts'
import { type Instance, instanceOf } from './instance.ts'

export type InstanceLock =
  | { readonly kind: 'held'; readonly release: () => Promise<void> }
  /** By a proxy of the same name, or by one of another name whose chains would have the same ones. */
  | { readonly kind: 'busy'; readonly holder: string; readonly of: 'name' | 'chains' }

/** All that makes this proxy the only one of its kind here, or nothing. */
export async function lockInstance(
  { lock, chainsLock }: Pick<Instance, 'lock' | 'chainsLock'>,
  take: typeof takeLock,
  holder: string,
): Promise<InstanceLock> {
  const ofName = await take(lock, holder)
  if (ofName.kind === 'busy') return { ...ofName, of: 'name' }
  if (chainsLock === undefined) return ofName
  const ofChains = await take(chainsLock, holder).catch(async thrown => {
    await ofName.release()
    throw thrown
  })
  if (ofChains.kind === 'held')
    return {
      kind: 'held',
      release: async () => {
        await ofChains.release()
        await ofName.release()
      },
    }
  await ofName.release()
  return { ...ofChains, of: 'chains' }
}

export interface LockOptions {
  readonly log: Log
  readonly takeLock: typeof takeLock
  readonly processId: number
}

/** Runs as the only proxy of this name here; gives 1 when another one runs already. */
export async function asOnlyInstance(
  name: string | undefined,
  options: LockOptions,
  run: () => Promise<number>,
): Promise<number> {
  const lock = await lockInstance(instanceOf(name), options.takeLock, `pid ${options.processId}`)
  if (lock.kind === 'busy') {
    const holder = lock.holder === '' ? 'unknown: it does not answer' : lock.holder
    options.log.error({ holder }, busyText(name, lock.of))
    return 1
  }
  try {
    return await run()
  } finally {
    await lock.release()
  }
}

function busyText(name: string | undefined, of: 'name' | 'chains'): string {
  if (name === undefined)
    return "another kprobe runs in this network namespace; two would overwrite each other's tables"
  return of === 'name'
    ? "another kprobe with this --service-proxy-name runs in this network namespace; two would overwrite each other's tables"
    : 'another kprobe runs in this network namespace whose --service-proxy-name has the same hash: its iptables chains have the same names; choose another name'
}
