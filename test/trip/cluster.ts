import { writeFileSync } from 'node:fs'
import { clusterOf, sliceOf } from '../support/apiserver/generator.ts'
import { ApiServer } from '../support/apiserver/http-server.ts'

/** An API server in this process, with a cluster of 20 Services. */
export interface TripCluster {
  /** Adds an endpoint to one EndpointSlice, or takes it out again. */
  change(hasMore: boolean): void
  close(): Promise<void>
}

const SHAPE = { services: 20, endpointsPerService: 3 }

/** Writes the path to the server into `kubeconfig`. */
export async function startCluster(kubeconfig: string): Promise<TripCluster> {
  const server = await ApiServer.start({ relay: false })
  for (const { resource, object } of clusterOf(SHAPE)) server.store.create(resource, object)
  writeFileSync(kubeconfig, server.kubeconfig({ token: 'trip' }))
  return {
    change: hasMore =>
      void server.store.update(
        'endpointslices',
        sliceOf(7, { number: 0, pods: hasMore ? [21, 22, 23, 900] : [21, 22, 23] }),
      ),
    close: () => server.close(),
  }
}
