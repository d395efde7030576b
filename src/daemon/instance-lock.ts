import type { takeLock } from '../base/instance-lock.ts'
import type { Instance } from './instance.ts'

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
