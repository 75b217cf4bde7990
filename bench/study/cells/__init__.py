"""What do the benchmark's policies reach in each precision?"""
