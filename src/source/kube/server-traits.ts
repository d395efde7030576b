import { isJson, type Json } from '../../model/fields.ts'
import type { Resource } from './api-client.ts'
import type { Failure } from './failure.ts'

/** The known abilities of one server, shared by all requests to it. */
export interface ServerTraits {
  streamsLists: boolean
  /** It knows spec.clusterIP in a field selector, as Kubernetes 1.31 does; caching proxies may not. */
  selectsClusterIps: boolean
  /** It accepts, or ignores, the parameter of media types that leaves out managedFields. */
  dropsManagedFields: boolean
}

export function newTraits(): ServerTraits {
  return { streamsLists: true, selectsClusterIps: true, dropsManagedFields: true }
}

/** Tests whether the resource has a selector that not every server knows. */
function selectsClusterIp({ fieldSelector }: Resource): boolean {
  return fieldSelector.startsWith('spec.clusterIP')
}

/** Tests whether the selector would have left the object out: headless Services have no address to serve. */
export function isLeftOut(resource: Resource, { spec }: Json): boolean {
  return selectsClusterIp(resource) && isJson(spec) && spec.clusterIP === 'None'
}

/** The resource with the selectors that the server knows. Objects that come for want of a selector are ignored: isLeftOut. */
export function servedResource(resource: Resource, { selectsClusterIps }: ServerTraits): Resource {
  return selectsClusterIps || !selectsClusterIp(resource) ? resource : { ...resource, fieldSelector: '' }
}

/**
 * Notes what a server refuses as invalid. True where a list without the selector may be answered. Requests for streams have
 * more parts that may be refused: there, the words of the server decide.
 */
export function learn(
  traits: ServerTraits,
  resource: Resource,
  { failure, during }: { readonly failure: Failure; readonly during: 'list' | 'streaming list' | 'watch' },
): boolean {
  if (failure.kind !== 'invalid') return false
  const isSelector = during === 'list' || failure.text.includes('field label')
  if (isSelector && traits.selectsClusterIps && selectsClusterIp(resource)) {
    traits.selectsClusterIps = false
    return true
  }
  if (during === 'streaming list') traits.streamsLists = false
  return false
}
